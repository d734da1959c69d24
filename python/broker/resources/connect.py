"""Finds a gateway for a client's WebSocket or event stream."""

import secrets
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, urlsplit

import orjson

from broker.domain.values import Id, Model
from broker.operations.context import Context
from broker.operations.known_gateways import order_gateways
from broker.operations.registry import Operation, Route
from broker.operations.results import Json
from broker.setting_rules import NODE_LABEL
from broker.settings import Settings
from broker.storage.gateways import GatewayRow

ENDPOINT = "/api/v1/ws"
RETRY_LOW_MS = 500
RETRY_HIGH_MS = 5_000
_URLS = 1_000  # remembered: one for each gateway and account, and as many of programs' streams
_random = secrets.SystemRandom()


class ConnectParams(Model):
    """What the caller is about to do.

    Attributes:
        program_id: of the program that it will follow: it is sent where others follow it.
    """

    program_id: Id | None = None


class ConnectServer(Model):
    """One gateway that takes connections.

    Attributes:
        stream_url: of the program's event stream there; null where no program was named.
    """

    url: str
    connections: int
    stream_url: str | None = None


class Connect(Model):
    """Where to connect.

    Attributes:
        url: of the gateway to use, chosen by load and by chance.
        servers: that one first, the others in an order of their own for every answer.
        retry_after_ms: how long to wait before connecting; 0 unless gateways are starting or draining.
        stream_url: of the program's event stream at that gateway; null where no program was named.
    """

    url: str
    servers: list[ConnectServer]
    retry_after_ms: int
    stream_url: str | None = None


def url_template(settings: Settings) -> str:
    """The endpoint's URL as clients reach it; `{account}` in it is where the account's label goes."""
    if settings.public_ws_url:
        return settings.public_ws_url
    scheme = "wss" if settings.ws_tls_certificate else "ws"
    return f"{scheme}://{{account}}{settings.public_host}:{settings.ws_port}{ENDPOINT}"


@lru_cache(_URLS)
def _url_of(template: str, account: str, default_account: str, public_host: str) -> str:
    """The URL for one account; the default account needs no label."""
    label = "" if account == default_account else f"{account}."
    # A gateway has put its node there; without one, the answer names where one is to be expected.
    return template.replace("{account}", label).replace(NODE_LABEL, public_host)


@lru_cache(_URLS)
def _programs_url(url: str) -> str:
    """Where programs are at the gateway whose WebSocket has this URL: beside that.

    So who publishes gateways below another path needs to say so once.
    """
    parts = urlsplit(url)
    scheme = "https" if parts.scheme == "wss" else "http"
    path = f"{parts.path.rpartition('/')[0]}/programs/"
    return parts._replace(scheme=scheme, path=path, query="", fragment="").geturl()


@lru_cache(_URLS)
def _stream_url(url: str, program_id: str) -> str:
    """That of a program's event stream at the gateway whose WebSocket has this URL."""
    return f"{_programs_url(url)}{quote(program_id, safe='~:')}/events/stream"


class NamedServer(NamedTuple):
    """A gateway as callers see it, with the fields that `ConnectServer` describes."""

    url: str
    connections: int
    stream_url: str | None


class Advice(NamedTuple):
    """What a caller is told; see `Connect`. A tenth of the time that the models take to make."""

    url: str
    servers: list[NamedServer]
    retry_after_ms: int
    stream_url: str | None

    def json(self) -> bytes:
        """The JSON of a `Connect`."""
        url, servers, retry_after_ms, stream_url = self
        named = [{"url": each[0], "connections": each[1], "streamUrl": each[2]} for each in servers]
        answer = {"url": url, "servers": named, "retryAfterMs": retry_after_ms, "streamUrl": stream_url}
        return orjson.dumps(answer)


def advise(
    gateways: list[GatewayRow], account: str, settings: Settings, program_id: str | None = None
) -> tuple[Advice, GatewayRow | None]:
    """The answer for a caller of `account`, and the gateway that comes first, from those that are alive."""
    taking = [gateway for gateway in gateways if not gateway.draining]
    ordered = order_gateways(taking, None if program_id is None else f"{account}/{program_id}")
    known = account, settings.default_account, settings.public_host

    def stream_url(url: str) -> str | None:
        return None if program_id is None else _stream_url(url, program_id)

    urls = [_url_of(gateway.url, *known) for gateway in ordered]
    servers = [
        NamedServer(url, gateway.connections, stream_url(url))
        for url, gateway in zip(urls, ordered, strict=True)
    ]
    # While more than half of the gateways leave, everybody comes at once: spread them.
    is_calm = bool(taking) and 2 * len(taking) >= len(gateways)
    url = urls[0] if urls else _url_of(url_template(settings), *known)
    retry_after_ms = 0 if is_calm else _random.randint(RETRY_LOW_MS, RETRY_HIGH_MS)
    first_stream = servers[0].stream_url if servers else stream_url(url)
    return Advice(url, servers, retry_after_ms, first_stream), ordered[0] if ordered else None


async def connect(context: Context, params: ConnectParams) -> Json:
    """Name a gateway, and the others in case it cannot be reached. Costs no query."""
    services = context.services
    gateways = await services.known_gateways.list()
    advice, first = advise(gateways, context.principal.account, services.settings, params.program_id)
    if first is not None:
        services.known_gateways.note_sent(first.id)
    return Json(advice.json())


OPERATIONS = (
    Operation(
        name="connect",
        summary="Find a gateway for a WebSocket or an event stream",
        result=Connect,
        handler=connect,
        route=Route("GET", "/connect"),
        example={"programId": "final-2026"},
        tag="WebSocket",
    ),
)
