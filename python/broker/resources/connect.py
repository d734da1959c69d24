"""Which gateway a client should open its WebSocket or its event stream to."""

import secrets
from functools import lru_cache
from urllib.parse import quote, urlsplit

from broker.domain.values import Id, Model
from broker.operations.context import Context
from broker.operations.known_gateways import order_gateways
from broker.operations.registry import Operation, Route
from broker.setting_rules import NODE_LABEL
from broker.settings import Settings
from broker.storage.gateways import GatewayRow

ENDPOINT = "/api/v1/ws"
RETRY_LOW_MS = 500
RETRY_HIGH_MS = 5_000
_URLS = 1_000  # remembered: one for each gateway and account
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
    return f"ws://{{account}}{settings.public_host}:{settings.ws_port}{ENDPOINT}"


def url_of(template: str, account: str, settings: Settings) -> str:
    """The URL for one account; the default account needs no label."""
    label = "" if account == settings.default_account else f"{account}."
    # A gateway has put its node there; without one, the answer names where one is to be expected.
    return template.replace("{account}", label).replace(NODE_LABEL, settings.public_host)


@lru_cache(_URLS)
def _programs_url(url: str) -> str:
    """Where programs are at the gateway whose WebSocket has this URL: beside that.

    So who publishes gateways below another path needs to say so once.
    """
    parts = urlsplit(url)
    scheme = "https" if parts.scheme == "wss" else "http"
    path = f"{parts.path.rpartition('/')[0]}/programs/"
    return parts._replace(scheme=scheme, path=path, query="", fragment="").geturl()


def advise(
    gateways: list[GatewayRow], account: str, settings: Settings, program_id: str | None = None
) -> tuple[Connect, GatewayRow | None]:
    """The answer for a caller of `account`, and the gateway that comes first, from those that are alive."""
    taking = [gateway for gateway in gateways if not gateway.draining]
    ordered = order_gateways(taking, None if program_id is None else f"{account}/{program_id}")

    stream = "" if program_id is None else f"{quote(program_id, safe='~:')}/events/stream"

    def stream_url(url: str) -> str | None:
        return _programs_url(url) + stream if stream else None

    urls = [url_of(gateway.url, account, settings) for gateway in ordered]
    servers = [
        ConnectServer(url=url, connections=gateway.connections, stream_url=stream_url(url))
        for url, gateway in zip(urls, ordered, strict=True)
    ]
    # While more than half of the gateways leave, everybody comes at once: spread them.
    is_calm = bool(taking) and 2 * len(taking) >= len(gateways)
    url = urls[0] if urls else url_of(url_template(settings), account, settings)
    answer = Connect(
        url=url,
        servers=servers,
        retry_after_ms=0 if is_calm else _random.randint(RETRY_LOW_MS, RETRY_HIGH_MS),
        stream_url=servers[0].stream_url if servers else stream_url(url),
    )
    return answer, ordered[0] if ordered else None


async def connect(context: Context, params: ConnectParams) -> Connect:
    """Name a gateway, and the others in case it cannot be reached. Costs no query."""
    services = context.services
    gateways = await services.known_gateways.list()
    answer, first = advise(gateways, context.principal.account, services.settings, params.program_id)
    if first is not None:
        services.known_gateways.note_sent(first.id)
    return answer


OPERATIONS = (
    Operation(
        name="connect",
        summary="Find a gateway for a WebSocket or an event stream",
        params=ConnectParams,
        result=Connect,
        handler=connect,
        route=Route("GET", "/connect"),
        example={"programId": "final-2026"},
        tag="WebSocket",
    ),
)
