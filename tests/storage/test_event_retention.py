"""How long accounts keep their events."""

from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import pytest

from broker.domain.audit import Actor
from broker.storage.database import Database
from broker.storage.event_retention import EventRetention
from tests.auth.services import open_database
from tests.storage.full_account import fill_account

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

_HOUR = timedelta(hours=1)
# Numbers 11 to 40, of so many days ago: 30, 29 …
_EVENTS = """
INSERT INTO events (history, seq, id, created_time, timestamp, timecode, event, metadata)
SELECT history, 10 + n, gen_random_uuid(), now() - (31 - n) * interval '1 day', 1, 2, 'Score#update', '{}'
FROM program_heads, generate_series(1, 30) AS n WHERE epoch LIKE '%-final'
"""
_ASKED = """
INSERT INTO answer_polls (program_uid, account, measure, context, shards)
SELECT h.program_uid, $1, 'asked', e.id::text, 1 FROM events e JOIN program_heads h USING (history)
WHERE h.epoch = $1 || '-final' AND e.seq = 12
"""
_LEFT = """
SELECT e.seq FROM events e JOIN program_heads h USING (history) WHERE h.epoch = $1 || '-final' AND e.seq > 10
ORDER BY e.seq
"""


@pytest.fixture
async def database(migrated_dsn: str) -> AsyncIterator[Database]:
    async with open_database(migrated_dsn) as database:
        yield database


async def left(connection: asyncpg.Connection, account: str) -> list[int]:
    return [row["seq"] for row in await connection.fetch(_LEFT, account)]


async def test_old_events_go_in_batches_but_for_those_of_polls(database: Database) -> None:
    retention = EventRetention(database)
    async with database.connection() as connection:
        for account in ("arena", "elsewhere"):
            await fill_account(connection, account)
        await connection.execute(_EVENTS)
        await connection.execute("DELETE FROM events WHERE seq < 10")
        await connection.execute(_ASKED, "arena")
        assert not await retention.purge(_HOUR, 7)
        await retention.set("arena", 10, Actor.operator())
        sizes = [30]
        while await retention.purge(_HOUR, 7):
            sizes.append(len(await left(connection, "arena")))
        assert sizes == [30, 23, 16, 10]
        assert await left(connection, "arena") == [12, *range(32, 41)]
        assert len(await left(connection, "elsewhere")) == 30
        # Recovery covers more.
        await retention.set("arena", 1, Actor.operator())
        await retention.purge(timedelta(days=5.5), 100)
        assert await left(connection, "arena") == [12, *range(36, 41)]
        await retention.set("arena", None, Actor.operator())
        assert not await retention.purge(_HOUR, 1)
