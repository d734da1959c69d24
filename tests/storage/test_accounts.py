import asyncio
from collections.abc import AsyncIterator

import pytest

from broker.errors import NotFound, Unavailable
from broker.storage import accounts as module
from broker.storage.accounts import Accounts
from broker.storage.database import Database
from tests.auth.services import StoppedClock, open_database

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


@pytest.fixture
async def database(migrated_dsn: str) -> AsyncIterator[Database]:
    async with open_database(migrated_dsn) as database:
        yield database


async def test_ensure_in_many_processes_makes_one_account(database: Database) -> None:
    made = await asyncio.gather(*(Accounts(database, StoppedClock()).ensure("one") for _ in range(6)))
    assert len({account.created_time for account in made}) == 1
    assert [a.name for a in await Accounts(database, StoppedClock()).list()] == ["demo", "one", "other"]


async def test_unknown_account_is_not_found(database: Database) -> None:
    accounts = Accounts(database, StoppedClock())
    assert await accounts.find("missing") is None
    assert await accounts.find("no\x00name") is None
    with pytest.raises(NotFound):
        await accounts.get("missing")


async def test_unknown_name_is_asked_again_after_a_second(database: Database) -> None:
    clock = StoppedClock()
    accounts = Accounts(database, clock)
    assert not await accounts.exists("late")
    await Accounts(database, clock).create("late")
    clock.ms += 999
    assert not await accounts.exists("late")
    clock.ms += 1
    assert await accounts.exists("late")


async def test_known_name_is_asked_again_after_five_seconds(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = StoppedClock()
    accounts = Accounts(database, clock)
    asked: list[str] = []
    find = accounts.find

    async def count(name: str) -> object:
        asked.append(name)
        return await find(name)

    monkeypatch.setattr(accounts, "find", count)
    for step_ms in (0, 4999, 1):
        clock.ms += step_ms
        assert await accounts.exists("demo")
    assert len(asked) == 2


async def test_own_creation_is_known_at_once(database: Database) -> None:
    accounts = Accounts(database, StoppedClock())
    assert not await accounts.exists("new")
    await accounts.create("new")
    assert await accounts.exists("new")


async def test_older_answer_counts_while_the_database_is_away(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = StoppedClock()
    accounts = Accounts(database, clock)
    assert await accounts.exists("demo")
    clock.ms += 60_000

    def away(_self: Database) -> None:
        raise Unavailable("away")

    monkeypatch.setattr(Database, "connection", away)
    assert await accounts.exists("demo")
    with pytest.raises(Unavailable):
        await accounts.exists("other")


async def test_memory_of_names_is_bounded(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KNOWN_NAMES", 3)
    accounts = Accounts(database, StoppedClock())
    for number in range(10):
        await accounts.exists(f"name-{number}")
    assert len(accounts._known) == 3


@pytest.mark.parametrize("name", ["", "UPPER", "a.b", "x" * 64, "é"])
async def test_what_is_no_name_costs_no_query(
    database: Database, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_self: Database) -> None:
        raise AssertionError("asked the database")

    monkeypatch.setattr(Database, "connection", refuse)
    assert not await Accounts(database, StoppedClock()).exists(name)
