"""Which accounts there are: remembered for seconds, at a bounded cost for names that strangers invent."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from broker.auth import account_cache
from broker.auth.known_accounts import KnownAccounts
from broker.errors import NotFound, SlowDown, Unavailable
from broker.storage.accounts import Account, Accounts
from broker.storage.database import Database
from tests.auth.services import StoppedClock, open_database

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

STRANGER = "192.0.2.1"


@pytest.fixture
async def database(migrated_dsn: str) -> AsyncIterator[Database]:
    async with open_database(migrated_dsn) as database:
        yield database


class CountedAccounts(Accounts):
    """The accounts, and how often they were asked for."""

    queries = 0

    async def find(self, name: str) -> Account | None:
        self.queries += 1
        return await super().find(name)


def away(_self: Database) -> None:
    raise Unavailable("away")


async def exists(known: KnownAccounts, name: str, address: str = "") -> bool:
    try:
        await known.require(name, address)
    except NotFound:
        return False
    return True


async def test_unknown_name_is_asked_again_after_a_second(database: Database) -> None:
    clock = StoppedClock()
    known = KnownAccounts(Accounts(database), clock)
    assert not await exists(known, "late")
    await Accounts(database).create("late")
    clock.ms += 999
    assert not await exists(known, "late")
    clock.ms += 1
    assert await exists(known, "late")


async def test_known_name_is_asked_again_after_five_seconds(database: Database) -> None:
    clock, accounts = StoppedClock(), CountedAccounts(database)
    known = KnownAccounts(accounts, clock)
    for step_ms in (0, 4_999, 1):
        clock.ms += step_ms
        await known.require("demo", STRANGER)
        assert known.has("demo")
    assert accounts.queries == 2


async def test_older_answer_counts_while_the_database_is_away(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for an account that was quiet while others were asked for."""
    clock = StoppedClock()
    known = KnownAccounts(Accounts(database), clock)
    await known.require("demo", "")
    clock.ms += 60_000
    assert not await exists(known, "nobody")
    await known.require("other", "")
    clock.ms += 60_000
    monkeypatch.setattr(Database, "connection", away)
    await known.require("demo", "")
    await known.require("other", "")
    with pytest.raises(Unavailable):
        await known.require("nobody", "")


async def test_invented_names_cost_an_address_so_many_queries(database: Database) -> None:
    clock, accounts = StoppedClock(), CountedAccounts(database)
    known = KnownAccounts(accounts, clock)
    invented = [f"nobody-{at}" for at in range(300)]
    assert [name for name in invented[:100] if await exists(known, name, STRANGER)] == []
    for name in invented[100:]:
        with pytest.raises(SlowDown):
            await known.require(name, STRANGER)
    assert accounts.queries == 100
    assert not await exists(known, invented[99], STRANGER)
    assert accounts.queries == 100, "a name without an account is remembered"
    await known.require("demo", "192.0.2.2")
    await known.require("demo", STRANGER)
    clock.ms += 1_000
    assert not await exists(known, "another", STRANGER)


async def test_equal_names_at_a_time_cost_one_query(database: Database) -> None:
    accounts = CountedAccounts(database)
    known = KnownAccounts(accounts, StoppedClock())
    assert await asyncio.gather(*(exists(known, "demo", STRANGER) for _ in range(50))) == [True] * 50
    assert await asyncio.gather(*(exists(known, "nobody", STRANGER) for _ in range(50))) == [False] * 50
    assert accounts.queries == 2


async def test_few_wait_and_the_others_are_refused(database: Database) -> None:
    """Whatever the number of addresses, one connection is enough for them all."""
    known = KnownAccounts(Accounts(database), StoppedClock())
    asked = [known.require(f"nobody-{at}", f"192.0.2.{at % 250}") for at in range(500)]
    told = Counter(map(type, await asyncio.gather(*asked, return_exceptions=True)))
    assert set(told) == {NotFound, Unavailable}
    await known.require("demo", STRANGER)


async def test_invented_names_take_no_place_of_others(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account_cache, "MAX_NAMES", 5)
    known = KnownAccounts(Accounts(database), StoppedClock())
    await known.require("demo", STRANGER)
    for at in range(20):
        assert not await exists(known, f"nobody-{at}", STRANGER)
    assert known.has("demo")


@pytest.mark.parametrize("name", ["", "UPPER", "a.b", "x" * 64, "é"])
async def test_what_is_no_name_costs_no_query(database: Database, name: str) -> None:
    accounts = CountedAccounts(database)
    assert not await exists(KnownAccounts(accounts, StoppedClock()), name)
    assert accounts.queries == 0
