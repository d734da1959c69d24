"""Which gateways count as alive, on a real database."""

import pytest

from broker.storage.database import Database
from broker.storage.gateways import GatewayRow, Gateways
from tests.storage.answers import fetch

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

SEEN = "UPDATE gateways SET seen = clock_timestamp() + $2::text::interval WHERE id = $1"

FORMER_BEAT = """
INSERT INTO gateways (id, url, connections, draining, failing, figures, seen)
VALUES ('old', 'ws://old', 0, false, '{}', '{}', clock_timestamp())
"""


@pytest.mark.parametrize(
    ("seen", "is_alive"),
    [("-1 second", True), ("-11 seconds", False), ("1 second", True), ("1 hour", False)],
    ids=["lately", "long ago", "before a small step back", "before a large step back"],
)
async def test_gateway_is_alive_by_a_heartbeat_of_now(migrated_dsn: str, seen: str, is_alive: bool) -> None:
    """A server whose clock is set back, or is behind that of the one before, has heartbeats of the future."""
    database = await Database.open(migrated_dsn, size=1, timeout_s=5)
    try:
        gateways = Gateways(database)
        await gateways.beat(GatewayRow("it", "ws://it", 0, False))
        await fetch(migrated_dsn, SEEN, "it", seen)
        assert [row.id for row in await gateways.list_alive()] == ["it"] * is_alive
        await gateways.beat(GatewayRow("it", "ws://it", 0, False))
        assert [row.id for row in await gateways.list_alive()] == ["it"]
    finally:
        await database.close()


@pytest.mark.parametrize("seen", ["-2 hours", "2 hours"])
async def test_gateway_that_ended_silently_is_forgotten(migrated_dsn: str, seen: str) -> None:
    database = await Database.open(migrated_dsn, size=1, timeout_s=5)
    try:
        gateways = Gateways(database)
        await gateways.beat(GatewayRow("silent", "ws://silent", 0, False))
        await fetch(migrated_dsn, SEEN, "silent", seen)
        await gateways.remove("another")
        assert await fetch(migrated_dsn, "SELECT id FROM gateways") == []
    finally:
        await database.close()


async def test_gateway_of_the_version_before_has_no_actor(migrated_dsn: str) -> None:
    """It runs beside this one, and writes its heartbeats as it has always done."""
    database = await Database.open(migrated_dsn, size=1, timeout_s=5)
    try:
        gateways = Gateways(database)
        await gateways.beat(GatewayRow("new", "ws://new", 0, False, (), "gateway-1"))
        await fetch(migrated_dsn, FORMER_BEAT)
        assert {row.id: row.actor for row in await gateways.list_alive()} == {"new": "gateway-1", "old": ""}
    finally:
        await database.close()
