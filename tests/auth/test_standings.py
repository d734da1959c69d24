"""What is kept of users, for how long, and what happens where answers of the database cross."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import datetime
from typing import Any

import pytest

from broker.auth import membership, standings
from broker.auth.standings import Standings
from broker.clock import SystemClock, to_datetime
from broker.domain.api_tokens import ApiToken
from broker.domain.audit import Actor
from broker.domain.users import Role, User
from broker.ids import IdSource
from broker.storage.api_tokens import ApiTokens
from broker.storage.database import Database
from broker.storage.revocations import Revocation, Revocations
from broker.storage.users import Standing, Users
from tests.auth.services import StoppedClock, open_database

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

CLOCK = SystemClock()
FAR_MS = 2**52


class CountedUsers(Users):
    """Counts queries for standings, and can hold their answers back."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.asked: list[list[str]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def standings(self, user_ids: Iterable[str]) -> list[Standing]:
        asked = list(user_ids)
        self.asked.append(asked)
        found = await super().standings(asked)
        await self.gate.wait()
        return found


@pytest.fixture
async def database(migrated_dsn: str) -> AsyncIterator[Database]:
    async with open_database(migrated_dsn) as database:
        yield database


async def add(database: Database, name: str) -> tuple[User, int]:
    """A user, and the state of its credentials."""
    user = membership.build_user(CLOCK, IdSource(CLOCK), username=name, role=Role.USER)
    await membership.add_user(Users(database), "demo", user, "hash")
    return user, await state(database, name)


async def state(database: Database, name: str) -> int:
    credentials = await Users(database).find_credentials("demo", name)
    assert credentials is not None
    return credentials.valid_from_ms


async def change_password(database: Database, user: User) -> None:
    await membership.change_user(Users(database), CLOCK, "demo", user.id, lambda u: u, "other hash")


async def test_many_requests_for_a_new_user_cost_one_query(database: Database) -> None:
    user, valid_from = await add(database, "kim")
    users = CountedUsers(database)
    known = Standings(users, Revocations(database), StoppedClock())
    found = await asyncio.gather(*(known.find(("demo", user.id), valid_from, FAR_MS) for _ in range(30)))
    assert {standing.username for standing in found if standing} == {"kim"}
    assert None not in found
    assert len(users.asked) == 1


async def test_token_made_while_an_older_answer_is_on_its_way_is_accepted(database: Database) -> None:
    user, old = await add(database, "kim")
    users = CountedUsers(database)
    known = Standings(users, Revocations(database), StoppedClock())
    users.gate.clear()
    first = asyncio.create_task(known.find(("demo", user.id), old, FAR_MS))
    while not users.asked:  # noqa: ASYNC110 - the query tells nobody
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)  # the answer has been read; it is held back
    await change_password(database, user)
    new = await state(database, "kim")
    second = asyncio.create_task(known.find(("demo", user.id), new, FAR_MS))
    await asyncio.sleep(0)
    users.gate.set()
    assert await second is not None
    await first
    assert await known.find(("demo", user.id), old, FAR_MS) is None


async def test_older_answer_does_not_revive_what_was_revoked(database: Database) -> None:
    user, old = await add(database, "kim")
    users = CountedUsers(database)
    known = Standings(users, Revocations(database), StoppedClock())
    await known.catch_up()
    users.gate.clear()
    late = asyncio.create_task(known.find(("demo", user.id), old, FAR_MS))
    while not users.asked:  # noqa: ASYNC110 - the query tells nobody
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)
    await change_password(database, user)
    await known.catch_up()
    assert known.is_revoked(("demo", user.id), old)
    users.gate.set()
    assert await late is None
    assert await known.find(("demo", user.id), old, FAR_MS) is None


async def test_user_is_looked_after_until_its_last_token_ends(database: Database) -> None:
    clock = StoppedClock()
    user, valid_from = await add(database, "kim")
    users = CountedUsers(database)
    known = Standings(users, Revocations(database), clock)
    await known.find(("demo", user.id), valid_from, clock.ms + 1000)
    await known.find(("demo", user.id), valid_from, clock.ms + 500)
    clock.ms += 999
    await known.catch_up()
    assert users.asked == [[user.id]] * 2
    clock.ms += 1
    await known.catch_up()
    assert users.asked == [[user.id]] * 2


async def test_what_is_kept_is_bounded(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standings, "MAX_STANDINGS", 3)
    monkeypatch.setattr(standings, "MAX_REMEMBERED", 5)
    known = Standings(Users(database), Revocations(database), StoppedClock())
    added = [await add(database, f"user-{number}") for number in range(8)]
    for user, valid_from in added:
        assert await known.find(("demo", user.id), valid_from, FAR_MS) is not None
    assert len(known._standings) == 3
    assert len(known._needed_until_ms) == 3
    assert len(known._newest) == 5
    for user, valid_from in added:
        assert await known.find(("demo", user.id), valid_from, FAR_MS) is not None


async def test_revocation_is_told_once_however_often_it_is_read(database: Database) -> None:
    user, valid_from = await add(database, "kim")
    known = Standings(Users(database), Revocations(database), StoppedClock())
    told: list[tuple[Any, ...]] = []
    known.on_revocation(lambda *revocation: told.append(revocation))
    await known.find(("demo", user.id), valid_from, FAR_MS)
    await known.catch_up()
    await change_password(database, user)
    for _ in range(3):
        await known.catch_up()
    assert told == [("demo", user.id, await state(database, "kim"))]
    await change_password(database, user)
    await known.catch_up()
    await known.catch_up()
    assert len(told) == 2


class EarlyRevocations(Revocations):
    """Something happens between the reading of the feed and that of the users."""

    def __init__(self, database: Database, afterwards: Callable[[], Awaitable[None]]) -> None:
        super().__init__(database)
        self._afterwards: Callable[[], Awaitable[None]] | None = afterwards

    async def since(self, position: datetime) -> tuple[list[Revocation], datetime]:
        found = await super().since(position)
        if self._afterwards is not None:
            afterwards, self._afterwards = self._afterwards, None
            await afterwards()
        return found


async def test_revocation_is_told_once_where_the_user_is_missed_before_it_is_read(database: Database) -> None:
    user, valid_from = await add(database, "kim")
    subject = ("demo", user.id)

    async def delete() -> None:
        await change_password(database, user)
        await membership.remove_user(Users(database), "demo", user.id)

    known = Standings(Users(database), EarlyRevocations(database, delete), StoppedClock())
    told: list[tuple[Any, ...]] = []
    known.on_revocation(lambda *revocation: told.append(revocation))
    await known.find(subject, valid_from, FAR_MS)
    for _ in range(3):
        await known.catch_up()
        assert [gone for *gone, _ in told] == [list(subject)]
        assert known.is_revoked(subject, valid_from)
        assert await known.find(subject, valid_from, FAR_MS) is None


async def test_revocations_before_the_start_are_not_told(database: Database) -> None:
    user, _ = await add(database, "kim")
    await change_password(database, user)
    async with database.connection() as connection:
        await connection.execute("UPDATE revocations SET created_time = now() - interval '31 seconds'")
    known = Standings(Users(database), Revocations(database), StoppedClock())
    told: list[object] = []
    known.on_revocation(lambda *revocation: told.append(revocation))
    await known.catch_up()
    assert told == []


async def test_row_that_becomes_visible_late_is_read(database: Database) -> None:
    user, valid_from = await add(database, "kim")
    known = Standings(Users(database), Revocations(database), StoppedClock())
    told: list[object] = []
    known.on_revocation(lambda *revocation: told.append(revocation))
    await known.catch_up()
    async with database.transaction() as connection:
        await connection.execute(
            "INSERT INTO revocations (account, subject, valid_from, created_time)"
            " VALUES ('demo', $1, now(), now())",
            user.id,
        )
        await known.catch_up()
        assert told == []
    await known.catch_up()
    assert len(told) == 1
    assert known.is_revoked(("demo", user.id), valid_from)


async def test_revoked_api_token_is_told_of_a_user_who_is_looked_at_no_more(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway holds more sessions than a process knows standings."""
    monkeypatch.setattr(standings, "MAX_STANDINGS", 1)
    known = Standings(Users(database), Revocations(database), StoppedClock())
    told: list[tuple[str, str]] = []
    known.on_change(lambda *subject: told.append(subject))
    await known.catch_up()
    user, valid_from = await add(database, "kim")
    token = ApiToken(id="t1", name="mixer", created_time=to_datetime(CLOCK.now_ms()))
    tokens, by = ApiTokens(database), Actor(user.id, "kim")
    await tokens.add("demo", by, valid_from, token, b"hash")
    subject = ("demo", user.id)
    assert await known.find(subject, valid_from, FAR_MS, "t1") is not None
    other, since = await add(database, "lee")
    assert await known.find(("demo", other.id), since, FAR_MS) is not None  # in place of the first
    await tokens.delete("demo", by, "t1")
    assert not known.is_revoked(subject, valid_from, "t1")
    await known.catch_up()
    await known.catch_up()
    assert known.is_revoked(subject, valid_from, "t1")
    assert not known.is_revoked(subject, valid_from)
    assert told == [subject]
