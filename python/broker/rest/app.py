"""The ASGI application of the HTTP door.

One request is one pass through `_serve_operation`: account, route, token, body, `invoke`, reply. It is
written as one application and not as layers of middleware because every layer costs each publish some
microseconds, and a layer that runs handlers in another task breaks context variables.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import orjson

from broker.domain.strict_json import may_have
from broker.domain.users import Principal
from broker.errors import InvalidRequest, MethodNotAllowed, NotFound, Unavailable
from broker.image_urls import PREFIX as IMAGES
from broker.metrics import catalogue, page
from broker.metrics.counts import Sample
from broker.operations.context import Context
from broker.operations.invoke import check_audience, invoke
from broker.operations.registry import Effect, Registry
from broker.operations.services import Services
from broker.rest import docs, streams
from broker.rest.account import account_of_host
from broker.rest.asgi import Receive
from broker.rest.asyncapi import asyncapi_document
from broker.rest.callers import CallOrigin
from broker.rest.deadlines import Deadlines
from broker.rest.door import Door, header_text
from broker.rest.held_bodies import HeldBodies, HeldBody
from broker.rest.openapi import openapi_document
from broker.rest.reply import PREFLIGHT, Exchange
from broker.rest.request import (
    JSON_TYPE,
    PART_S,
    TOKEN,
    Headers,
    bearer_token,
    body_chunks,
    check_body_type,
    has_content,
    leading_token,
    merge_path,
    negotiate,
    parse_body,
    parse_query,
    query_token,
    read_body,
    take_token,
)
from broker.rest.routing import Endpoint, RouteTable, allowed_methods, split_path
from broker.rest.sites import SITES
from broker.rest.start_page import start_page
from broker.rest.static_files import StaticFiles
from broker.settings import Settings
from broker.tracing.requests import RequestTraces

_DOCUMENTS: Mapping[str, Callable[[Registry, Settings], dict[str, Any]]] = {
    "api/v1/openapi.json": openapi_document,
    "api/v1/asyncapi.json": asyncapi_document,
}

_PEEK_BYTES = 16 << 10  # twice the largest token that any server takes in a header
_ACCOUNTS = 1_000  # remembered at a time
_HOSTS = 1_000
_HOST_BYTES = 256  # a stranger does not fill the memory with longer ones
_JWKS_CACHE = ((b"cache-control", b"public, max-age=60"),)
_IMAGES = f"{IMAGES}/".encode()
_IMAGES_S = 2
_NO_STORE = ((b"cache-control", b"no-store"),)

_FOR_OPERATORS = {"readyz", "metrics"}


def build_app(services: Services, registry: Registry) -> "RestApp":
    """The application that serves `registry`."""
    return RestApp(services, registry)


class RestApp(Door):
    """The ASGI application of the HTTP door. Safe for any number of concurrent requests on one event loop."""

    def __init__(self, services: Services, registry: Registry) -> None:
        super().__init__(services.settings, services.clock, services.ids)
        self._services = services
        self._waits = Deadlines(PART_S, services.clock)
        self._bodies = HeldBodies(services.settings.http_waiting_bytes, services.settings.body_limit_bytes)
        tracer, share = services.tracer, services.settings.traces_sample
        self._traces = None if tracer is None else RequestTraces(tracer, share, services.clock)
        self._hosts: dict[bytes, str] = {}  # the account of each that was asked for
        self._routes = RouteTable(registry.routed)
        self._documents = {
            path: orjson.dumps(describe(registry, services.settings)) for path, describe in _DOCUMENTS.items()
        }
        self._sites = {name: StaticFiles(folder, headers) for name, (folder, headers) in SITES.items()}
        self._pages = {
            "healthz": self._serve_healthz,
            "readyz": self._serve_readyz,
            "metrics": self._serve_metrics,
            "docs": self._serve_docs,
            ".well-known/jwks.json": self._serve_jwks,
        }

    def figures(self) -> Iterator[Sample]:
        """What is under way, and what it holds."""
        yield from super().figures()
        yield Sample(catalogue.HTTP_WAITING.name, (), self._bodies.held_bytes)

    async def serve(
        self,
        scope: Mapping[str, Any],
        headers: Headers,
        caller: CallOrigin,
        receive: Receive,
        exchange: Exchange,
    ) -> None:
        """Answer a request of the API."""
        path = scope.get("raw_path") or scope["path"].encode()
        program_id = streams.find_program(path)
        if program_id is not None:
            await self._send_to_stream(program_id, scope, headers, caller, exchange)
            return
        endpoints, values = self._routes.find(path)
        if not endpoints:
            await self._serve_page(scope["method"], path, headers, caller, exchange)
            return
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        endpoint = endpoints.get(method)
        if endpoint is not None:
            held = self._bodies.begin()
            try:
                await self._serve_operation(endpoint, values, scope, headers, caller, receive, exchange, held)
            finally:
                held.release()
        elif method == "OPTIONS":
            await exchange.whole(204, b"", "", [(b"allow", allowed_methods(endpoints).encode()), *PREFLIGHT])
        else:
            raise _wrong_method(allowed_methods(endpoints))

    async def _serve_operation(
        self,
        endpoint: Endpoint,
        values: Sequence[str],
        scope: Mapping[str, Any],
        headers: Headers,
        caller: CallOrigin,
        receive: Receive,
        exchange: Exchange,
        held: HeldBody,
    ) -> None:
        operation, services = endpoint.operation, self._services
        route = endpoint.route
        # Who calls. A request without a token in its headers may have one in its body, below.
        account = self._account(headers)
        if not services.known_accounts.has(account):
            await services.known_accounts.require(account, caller.address)
        token = bearer_token(headers)
        if token is None:
            principal = _anonymous(account)
        else:
            principal = await services.auth.authenticate(account, token, caller.address)
        # The form of the response, and the fields of the query.
        accept = "" if route.is_proxy else negotiate(headers, route.produces)
        fields = parse_query(scope.get("query_string", b""), endpoint)
        # The body: streamed, parsed into fields, or none.
        body: AsyncIterator[bytes] | None = None
        body_type = ""
        if route.streams_body:
            body_type = check_body_type(headers, route)
            body = body_chunks(receive, headers, self._limit(endpoint), self._waits)
            if principal.is_anonymous:
                body, token = await _peek_token(body)
                principal = await self._principal(account, token, caller.address)
        elif has_content(headers):
            body_type = check_body_type(headers, route)
            held.belong_to(principal, caller.address)
            content = await read_body(receive, headers, self._limit(endpoint), self._waits, held)
            if principal.is_anonymous and not may_have(content, TOKEN):
                check_audience(operation, principal)
            sent = parse_body(content, body_type, route.whole_body)
            token = take_token(sent)
            if principal.is_anonymous:
                principal = await self._principal(account, token, caller.address)
            if fields and sent and route.takes_query:
                raise InvalidRequest("give the parameters in the query or in the body, not in both")
            fields |= sent if endpoint.has_body else _no_fields(sent)
        # The call.
        if self._traces is not None and operation.is_traced and not principal.is_anonymous:
            exchange.trace = self._traces.begin(
                headers.get(b"traceparent"),
                account,
                exchange.began_s,
                {"broker.operation": operation.name, "broker.request_id": exchange.request_id},
            )
        if_match = header_text(headers, b"if-match")
        # A condition that is ignored is worse than one that is refused; another server may honour it.
        is_ignored = not (operation.honours_if_match or route.is_proxy or operation.effect is Effect.NONE)
        if if_match is not None and is_ignored:
            raise InvalidRequest.of_field("If-Match", "does not apply to this operation")
        context = Context(
            services=services,
            principal=principal,
            request_id=exchange.request_id,
            address=caller.address,
            idempotency_key=header_text(headers, b"idempotency-key"),
            if_match=if_match,
            body_type=body_type,
            headers=_texts(headers) if route.is_proxy else {},
            accept=accept,
            body=body,
            trace=None if exchange.trace is None else exchange.trace.context,
        )
        exchange.has_effect = operation.effect is not Effect.NONE
        fields = merge_path(fields, endpoint, values)
        if route.ends_with_client:
            async with exchange.ended_by_client():
                await exchange.result(endpoint, await invoke(operation, context, fields))
        else:
            await exchange.result(endpoint, await invoke(operation, context, fields))

    async def _send_to_stream(
        self,
        program_id: str,
        scope: Mapping[str, Any],
        headers: Headers,
        caller: CallOrigin,
        exchange: Exchange,
    ) -> None:
        """Send a client on to a gateway that serves the program's event stream."""
        method = scope["method"]
        if method == "OPTIONS":
            allow = (b"allow", streams.METHODS.encode())
            await exchange.whole(204, b"", "", [allow, *streams.PREFLIGHT])
            return
        if method != "GET":
            raise _wrong_method(streams.METHODS)
        account = self._account(headers)
        await self._services.known_accounts.require(account, caller.address)
        query = scope.get("query_string", b"")
        token = bearer_token(headers) or query_token(query)
        # A gateway may know a token that cannot be checked here now.
        with suppress(Unavailable):
            await self._principal(account, token, caller.address)
        location = await streams.find_location(self._services, account, program_id, query)
        if location is None:
            raise Unavailable("no gateway takes connections", retry_after_s=streams.RETRY_AFTER_S)
        await exchange.whole(307, b"", "", [(b"location", location.encode()), *_NO_STORE])

    def _limit(self, endpoint: Endpoint) -> int:
        settings = self._services.settings
        general = settings.import_limit_bytes if endpoint.route.streams_body else None
        return endpoint.operation.limit or general or settings.body_limit_bytes

    def _account(self, headers: Headers) -> str:
        host = headers.get(b"host")
        if host is None:  # RFC 9112, section 3.2; a proxy may hand it on nevertheless
            raise InvalidRequest.of_field("Host", "is missing")
        account = self._hosts.get(host)
        if account is None:
            settings = self._services.settings
            account = account_of_host(host.decode("latin-1"), settings.public_host, settings.default_account)
            if len(host) <= _HOST_BYTES:
                if len(self._hosts) >= _HOSTS:
                    self._hosts.clear()
                self._hosts[host] = account
        return account

    async def _principal(self, account: str, token: str | None, address: str) -> Principal:
        if token is None:
            return _anonymous(account)
        return await self._services.auth.authenticate(account, token, address)

    async def _serve_page(
        self, method: str, path: bytes, headers: Headers, caller: CallOrigin, exchange: Exchange
    ) -> None:
        segments = split_path(path)
        name = "/".join(segments)
        if name in self._documents:
            await self._serve_document(self._documents[name], method, exchange)
            return
        # The ingress leads this path, as it was written, to an application of its own while there is one.
        if (path + b"/").startswith(_IMAGES):
            raise Unavailable("the image proxy is not available", retry_after_s=_IMAGES_S)
        if segments == [""]:
            await self._serve_start(method, headers, exchange)
            return
        site = self._sites.get(segments[0]) if segments else None  # CONNECT has no path
        if site is not None:
            await self._serve_site(site, method, segments, headers, exchange)
            return
        page = self._pages.get(name)
        if page is None or (name in _FOR_OPERATORS and not caller.is_operator):
            raise NotFound("there is nothing at this path")
        _require_read(method)
        await page(exchange)

    async def _serve_start(self, method: str, headers: Headers, exchange: Exchange) -> None:
        """Say where things are."""
        _require_read(method)
        body, media_type, extra = start_page(headers)
        await exchange.whole(200, body, media_type, extra)

    async def _serve_site(
        self, site: StaticFiles, method: str, segments: list[str], headers: Headers, exchange: Exchange
    ) -> None:
        _require_read(method)
        if len(segments) == 1:  # what the page names is relative to its folder
            await exchange.whole(308, b"", "", [(b"location", f"/{segments[0]}/".encode())])
            return
        await site.serve("/".join(segments[1:]), headers, exchange)

    async def _serve_document(self, document: bytes, method: str, exchange: Exchange) -> None:
        if method == "OPTIONS":
            await exchange.whole(204, b"", "", [(b"allow", b"GET, HEAD, OPTIONS"), *PREFLIGHT])
            return
        _require_read(method, "GET, HEAD, OPTIONS")
        await exchange.whole(200, document, JSON_TYPE, [(b"cache-control", b"public, max-age=300")])

    async def _serve_healthz(self, exchange: Exchange) -> None:
        """Whether this process answers."""
        await exchange.whole(200, b'{"status":"ok"}', JSON_TYPE, _NO_STORE)

    async def _serve_readyz(self, exchange: Exchange) -> None:
        """Whether everything that the product needs is there."""
        report = await self._services.health.report()
        body = orjson.dumps(report.fields())
        await exchange.whole(200 if report.is_ready else 503, body, JSON_TYPE, _NO_STORE)

    async def _serve_metrics(self, exchange: Exchange) -> None:
        """The metrics of all processes of this node, and whether what the product needs is there."""
        parts = await self._services.health.check()
        body = await page.read_page(self._services.settings.data_dir, self._services.clock, parts)
        await exchange.whole(200, body, page.CONTENT_TYPE, _NO_STORE)

    async def _serve_jwks(self, exchange: Exchange) -> None:
        """The public keys of our tokens (RFC 7517). A new key is announced for a minute before it signs."""
        keys = orjson.dumps(await self._services.auth.jwks())
        await exchange.whole(200, keys, "application/jwk-set+json", _JWKS_CACHE)

    async def _serve_docs(self, exchange: Exchange) -> None:
        """The reference for people."""
        await exchange.whole(200, docs.page(), "text/html; charset=utf-8", docs.headers())


def _require_read(method: str, allow: str = "GET, HEAD") -> None:
    if method not in ("GET", "HEAD"):
        raise _wrong_method(allow)


def _wrong_method(allow: str) -> MethodNotAllowed:
    return MethodNotAllowed(f"the methods of this path are {allow}", allow.split(", "))


@lru_cache(_ACCOUNTS)
def _anonymous(account: str) -> Principal:
    return Principal(account)


async def _peek_token(body: AsyncIterator[bytes]) -> tuple[AsyncIterator[bytes], str | None]:
    """A streamed body with nothing missing, and the access token that it begins with, if any."""
    start = b""
    async for chunk in body:
        start += chunk
        if len(start) >= _PEEK_BYTES:
            break

    async def whole() -> AsyncIterator[bytes]:
        yield start
        async for chunk in body:
            yield chunk

    return whole(), leading_token(start)


def _no_fields(sent: dict[str, Any]) -> dict[str, Any]:
    """Refuse fields in the body of a request whose params are in its query."""
    for name in sent:
        raise InvalidRequest.of_field(name, "is not a field of this request")
    return sent


def _texts(headers: Headers) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()}
