"""Who counts as a visitor: changes that cross, and a secret that is made meanwhile."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from broker.domain.audit import Actor
from broker.storage.database import Database
from broker.storage.visitor_rules import StoredRules, VisitorRules
from tests.auth.services import open_database
from tests.auth.visitor_tokens import SECRET

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

BY = Actor.operator()
_WAITING = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%visitor_rules%'
"""


@pytest.fixture
async def database(migrated_dsn: str) -> AsyncIterator[Database]:
    async with open_database(migrated_dsn) as database:
        await VisitorRules(database).change("demo", lambda _: StoredRules((SECRET,), None, "any"), BY)
        yield database


async def until_waiting(database: Database, count: int) -> None:
    async with asyncio.timeout(20):
        while True:
            async with database.connection() as connection:
                if await connection.fetchval(_WAITING) >= count:
                    return
            await asyncio.sleep(0.01)


async def test_a_change_keeps_the_secret_that_is_made_meanwhile(database: Database) -> None:
    """Else every visitor that was handed out under it would be unknown."""
    rules = VisitorRules(database)
    async with database.transaction() as connection:
        await connection.execute("SELECT FROM visitor_rules WHERE account = 'demo' FOR UPDATE")
        making = asyncio.ensure_future(rules.make_secret("demo"))
        await until_waiting(database, 1)
        changing = asyncio.ensure_future(
            rules.change("demo", lambda was: was._replace(required="issued"), BY)
        )
        await until_waiting(database, 2)
    secret = await making
    assert (await changing).secret == secret
    assert await rules.get("demo") == ((SECRET,), secret, "issued")


async def test_changes_at_the_same_time_all_count(database: Database) -> None:
    rules = VisitorRules(database)
    keys = [f"{SECRET}{number}" for number in range(8)]

    def adding(key: str) -> asyncio.Future[StoredRules]:
        added = rules.change("demo", lambda was: was._replace(keys=(*was.keys, key)), BY)
        return asyncio.ensure_future(added)

    await asyncio.gather(*map(adding, keys))
    assert {*(await rules.get("demo")).keys} == {SECRET, *keys}
