"""The gateways that are alive, according to their heartbeats.

A heartbeat counts for some seconds after its time, and before it: the clock of the server may be set back,
and that of the next server may be behind. Gateways that live beat again soon, those that have died do not.
"""

from dataclasses import dataclass

from broker.storage.database import Repository

STALE_AFTER_S = 10  # three heartbeats; a gateway that is silent for longer is not named to clients
_FORGET_AFTER_S = 3_600

# Processes of the version before read `figures`, which nobody writes any more.
_BEAT = """
INSERT INTO gateways (id, url, connections, draining, failing, actor, figures, seen)
VALUES ($1, $2, $3, $4, $5, $6, '{}', clock_timestamp())
ON CONFLICT (id) DO UPDATE SET url = excluded.url, connections = excluded.connections,
    draining = excluded.draining, failing = excluded.failing, seen = excluded.seen
"""
_FORGET = """
DELETE FROM gateways WHERE abs(extract(epoch FROM clock_timestamp() - seen)) > $1
"""
_REMOVE = "DELETE FROM gateways WHERE id = $1"
_LIST = """
SELECT id, url, connections, draining, failing, actor FROM gateways
WHERE abs(extract(epoch FROM clock_timestamp() - seen)) < $1
ORDER BY connections, id
"""


@dataclass(frozen=True, slots=True)
class GatewayRow:
    """One gateway.

    Attributes:
        id: unique per start of a gateway.
        url: of its WebSocket endpoint; `{account}` in it stands for the account's label with its dot.
        connections: open ones, as of its last heartbeat.
        draining: takes no new connections any more.
        failing: names of its long-lived tasks that end again and again.
        actor: the name by which other gateways find its process, to follow it; empty when none can.
    """

    id: str
    url: str
    connections: int
    draining: bool
    failing: tuple[str, ...] = ()
    actor: str = ""


class Gateways(Repository):
    """The table of gateways. Every method raises `Unavailable` while the database is unavailable."""

    async def beat(self, gateway: GatewayRow) -> None:
        """Say that `gateway` is alive and how it is."""
        await self._database.execute(
            _BEAT,
            gateway.id,
            gateway.url,
            gateway.connections,
            gateway.draining,
            gateway.failing,
            gateway.actor,
        )

    async def remove(self, gateway_id: str) -> None:
        """Say that a gateway has ended, and forget those that ended without saying so."""
        async with self._database.connection() as connection:
            await connection.execute(_REMOVE, gateway_id)
            await connection.execute(_FORGET, _FORGET_AFTER_S)

    async def list_alive(self) -> list[GatewayRow]:
        """The gateways with a heartbeat in the last 10 seconds, least connections first."""
        rows = await self._database.fetch(_LIST, STALE_AFTER_S)
        return [
            GatewayRow(
                row["id"],
                row["url"],
                row["connections"],
                row["draining"],
                tuple(row["failing"]),
                row["actor"],
            )
            for row in rows
        ]
