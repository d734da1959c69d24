"""Requests of a revision's data sources, sent by the server instead of the browser.

Whoever reads the project may send them; applications in the hands of the public (`client`) only those of
published revisions. The upstream's status, media type and body come back as they are. Over WebSocket they
are one object, with the caller's parameters, headers and body as params.
"""

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pydantic import Field, InstanceOf

from broker.concurrency.shares import Asker
from broker.domain import permissions
from broker.domain.callers import caller_of
from broker.domain.data_sources import (
    DataSource,
    Method,
    ParameterObject,
    SourceCall,
    build_request,
    find_data_source,
    require_parameters,
)
from broker.domain.values import Id, Model, Name
from broker.errors import (
    BadGateway,
    GatewayTimeout,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    field_path,
)
from broker.fetching.errors import ForbiddenUrl
from broker.operations.context import Context
from broker.operations.registry import Operation, Route
from broker.operations.results import Forwarded

STATUS_HEADER = "X-Upstream-Status"
_DEFAULT_TYPE = "application/octet-stream"
_MAX_TYPE_CHARACTERS = 255  # the longest type and subtype (RFC 6838, section 4.2), or as much with parameters
# What an upstream sends is nobody's page at our address, and nothing else than what it says it is.
_HARMLESS = {"Content-Security-Policy": "sandbox; default-src 'none'"}


class ApplicationRequestParams(Model):
    """Names a data source, and says what to send in place of its defaults."""

    project_id: Id
    version: Name = Field(description="Id or version of the revision.")
    data_source_id: Name
    query: ParameterObject = Field(
        default_factory=dict,
        description="Query parameters; each replaces the data source's parameter of the same name.",
    )
    headers: InstanceOf[dict[str, str]] = Field(
        default_factory=dict,
        description="Over WebSocket: headers, limited to those that the data source lists.",
    )


class ApplicationRequestBodyParams(ApplicationRequestParams):
    """The same for the methods that send a body."""

    body: Any = Field(
        default=None, description="JSON; members of an object override members of the default body."
    )


async def _request(context: Context, params: ApplicationRequestParams, method: Method) -> Forwarded:
    services, account = context.services, context.principal.account
    require_parameters(params.query, "query")
    _require_texts(params.headers)
    source = await _data_source(context, params)
    sent = {**{name.lower(): value for name, value in params.headers.items()}, **context.headers}
    body = params.body if isinstance(params, ApplicationRequestBodyParams) else None
    request = build_request(source, SourceCall(method, params.query, sent, body))
    await services.fetch_rate.take(account, context.address)
    total_s = services.settings.fetch_timeout_s if source.timeout_ms is None else source.timeout_ms / 1000
    asker = Asker(account, context.address and caller_of(context.address))
    reply = await services.source_replies.get(
        (account, params.project_id), asker, request, total_s, source.cache_seconds or 0
    )
    left_s = math.floor(reply.left_s)
    fetched = reply.fetched
    headers = {
        "Cache-Control": f"private, max-age={left_s}" if left_s else "no-store",
        STATUS_HEADER: str(fetched.status),
        **_HARMLESS,
    }
    return Forwarded(fetched.status, _media_type(fetched.headers), fetched.body, headers)


def _media_type(headers: Mapping[str, str]) -> str:
    """The upstream's media type, which goes into a header of ours. Raises BadGateway when it cannot."""
    media_type = headers.get("content-type", _DEFAULT_TYPE)
    if len(media_type) > _MAX_TYPE_CHARACTERS or not (media_type.isascii() and media_type.isprintable()):
        raise BadGateway("the upstream's Content-Type is invalid")
    return media_type


def _require_texts(headers: Mapping[str, object]) -> None:
    for name, value in headers.items():
        if not isinstance(value, str):
            raise InvalidRequest.of_field(field_path([name], "headers"), "must be a string")


async def _data_source(context: Context, params: ApplicationRequestParams) -> DataSource:
    account, project_id = context.principal.account, params.project_id
    revision = await context.services.data_sources.find(account, project_id, params.version)
    missing = f"the project {project_id} has no revision {params.version}"
    if revision is None:
        raise NotFound(missing)
    permissions.require_revision(
        context.rule,
        context.principal,
        project_id,
        is_published=revision.is_published,
        missing=missing,
    )
    source = find_data_source(revision.sources, params.data_source_id)
    if source is None:
        raise NotFound(f"the revision has no data source {params.data_source_id}")
    return source


def _handler(method: Method) -> Callable[[Context, ApplicationRequestParams], Awaitable[Forwarded]]:
    async def handle(context: Context, params: ApplicationRequestParams) -> Forwarded:
        return await _request(context, params, method)

    return handle


def _operation(method: Method, *, has_body: bool) -> Operation:
    return Operation(
        name=f"{method.lower()}ApplicationRequest",
        summary=f"Send a {method} request of a data source",
        params=ApplicationRequestBodyParams if has_body else ApplicationRequestParams,
        result=Any,
        handler=_handler(method),
        route=Route(
            method,
            "/projects/{projectId}/application/requests/{version}/{dataSourceId}",
            description="Query parameters, members of a JSON body, and headers that the data source lists"
            " (and `Accept`) override its defaults individually; its `Content-Type` is the one that is"
            " sent, the caller's only where it has none. The response has the upstream's status, media"
            " type and body, and the header `X-Upstream-Status`, which the broker's own responses never have."
            " The upstream may send at most {fetch_limit_bytes} bytes within {fetch_timeout_s} s. The role"
            " `client` may use published revisions only. Rate limits: {fetch_rate_per_address} requests"
            " per second per address (burst {fetch_burst_per_address}) and {fetch_rate_per_account} per"
            " account (burst {fetch_burst_per_account}); 0 is no limit. A project may have"
            " {fetch_project_requests} requests in progress.",
            whole_body="body" if has_body else None,
            is_proxy=True,
            headers=(STATUS_HEADER,),
        ),
        errors=(ForbiddenUrl, MethodNotAllowed, BadGateway, GatewayTimeout),
        example={
            "projectId": "football",
            "version": "1",
            "dataSourceId": "standings",
            "query": {"season": "2026"},
            **({"body": {"group": "A"}} if has_body else {}),
        },
        tag="Applications",
    )


OPERATIONS = (
    _operation("GET", has_body=False),
    _operation("POST", has_body=True),
    _operation("PUT", has_body=True),
    _operation("DELETE", has_body=False),
)
