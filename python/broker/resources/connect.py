"""Finds a gateway for a client's WebSocket or event stream.

The gateway of the ingress's node answers most of these requests itself (`deployments/connect_door.py`). What
its way and this one answer is made by the same code.
"""

from broker.domain.values import Id, Model
from broker.operations.context import Context
from broker.operations.registry import Operation, Route
from broker.operations.results import Json

NAME = "connect"
ROUTE = Route("GET", "/connect")


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


async def connect(context: Context, params: ConnectParams) -> Json:
    """Name a gateway, and the others in case it cannot be reached. Costs no query."""
    json, _ = await context.services.known_gateways.advise(context.principal.account, params.program_id)
    return Json(json)


OPERATIONS = (
    Operation(
        name=NAME,
        summary="Find a gateway for a WebSocket or an event stream",
        result=Connect,
        handler=connect,
        route=ROUTE,
        example={"programId": "final-2026"},
        tag="WebSocket",
    ),
)
