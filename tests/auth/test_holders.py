"""API tokens as bearer tokens: what they are worth, and what look-ups of invented ones cost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.auth import holders, membership
from broker.auth.authenticator import Authenticator
from broker.auth.holders import Holders
from broker.auth.throttle import ThrottleConfig
from broker.clock import to_datetime
from broker.domain.api_tokens import ApiToken, build_secret, hash_secret
from broker.domain.audit import Actor
from broker.domain.users import User
from broker.errors import SlowDown, Unauthenticated, Unavailable
from broker.ids import IdSource
from broker.storage.api_tokens import ApiTokens, Holder
from broker.storage.backup import back_up
from broker.storage.database import Database
from broker.storage.restore import restore
from broker.storage.users import Users
from tests.auth.services import MovedClock, make_user, open_authenticator, open_database

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

ADDRESS = "192.0.2.1"


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture
async def database(migrated_dsn: str) -> AsyncIterator[Database]:
    async with open_database(migrated_dsn, size=8) as database:
        yield database


@pytest.fixture
async def auth(database: Database, clock: MovedClock) -> AsyncIterator[Authenticator]:
    async with open_authenticator(database, clock) as auth:
        yield auth


async def make(
    database: Database, auth: Authenticator, clock: MovedClock, lifetime_ms: int | None = None
) -> tuple[User, str, str]:
    """A user, and the id and the secret of its API token."""
    user = await make_user(database, auth, "kim", projects=("a",))
    ids = IdSource(clock)
    secret, now_ms = build_secret(ids.secret()), clock.now_ms()
    expires = None if lifetime_ms is None else to_datetime(now_ms + lifetime_ms)
    token = ApiToken.model_construct(
        id=ids.uuid7(), name="mixer", created_time=to_datetime(now_ms), expires=expires
    )
    credentials = await Users(database).find_credentials("demo", "kim")
    assert credentials is not None
    by = Actor(user.id, "kim")
    await ApiTokens(database).add("demo", by, credentials.valid_from_ms, token, hash_secret(secret))
    return user, token.id, secret


def invented(number: int) -> str:
    return build_secret(f"{number:043}")


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The hashes that the database is asked for."""
    asked: list[bytes] = []
    whole = ApiTokens.find_holder

    async def count(self: ApiTokens, account: str, secret_hash: bytes, now_ms: int) -> Holder | None:
        asked.append(secret_hash)
        return await whole(self, account, secret_hash, now_ms)

    monkeypatch.setattr(ApiTokens, "find_holder", count)
    return asked


async def test_an_api_token_is_worth_what_its_exchange_is(
    database: Database, auth: Authenticator, clock: MovedClock
) -> None:
    user, token_id, secret = await make(database, auth, clock)
    own = await auth.authenticate("demo", secret, ADDRESS)
    exchanged = await auth.authenticate("demo", (await auth.exchange("demo", secret, ADDRESS)).text)
    for field in ("account", "role", "subject", "username", "project_ids", "valid_from_ms", "api_token_id"):
        assert getattr(own, field) == getattr(exchanged, field), field
    assert (own.subject, own.api_token_id, own.expires_ms) == (user.id, token_id, None)
    with pytest.raises(Unauthenticated):
        await auth.authenticate("other", secret, ADDRESS)


async def test_known_api_token_costs_no_query(
    database: Database, auth: Authenticator, clock: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, secret = await make(database, auth, clock)
    first = await auth.authenticate("demo", secret, ADDRESS)

    def refuse(_self: Database) -> None:
        raise Unavailable("no database for this test")

    monkeypatch.setattr(Database, "connection", refuse)
    assert await auth.authenticate("demo", secret, ADDRESS) is first
    clock.forward_ms += 365 * 86_400_000  # it has no end
    assert await auth.authenticate("demo", secret, ADDRESS) is first


async def test_an_api_token_ends_on_time_also_when_it_is_known(
    database: Database, auth: Authenticator, clock: MovedClock
) -> None:
    clock.stop()
    _, _, secret = await make(database, auth, clock, lifetime_ms=1_500)
    await auth.authenticate("demo", secret, ADDRESS)
    clock.forward_ms += 1_499
    await auth.authenticate("demo", secret, ADDRESS)
    clock.forward_ms += 1
    for _ in range(2):
        with pytest.raises(Unauthenticated):
            await auth.authenticate("demo", secret, ADDRESS)


@pytest.mark.parametrize("listens", [True, False], ids=["notified", "polled"])
@pytest.mark.parametrize("how", ["revoked", "password", "user"])
async def test_an_api_token_ends_in_another_process_in_time(
    database: Database, auth: Authenticator, clock: MovedClock, how: str, listens: bool
) -> None:
    poll_s = 60.0 if listens else 0.2  # so that only one of both can be the reason
    async with open_authenticator(database, clock, listens=listens, poll_s=poll_s) as other:
        user, token_id, secret = await make(database, auth, clock)
        principal = await other.authenticate("demo", secret, ADDRESS)
        if how == "revoked":
            await ApiTokens(database).delete("demo", Actor(user.id, "kim"), token_id)
        elif how == "password":
            await membership.change_user(Users(database), clock, "demo", user.id, lambda u: u, "other hash")
        else:
            await membership.remove_user(Users(database), "demo", user.id)
        async with asyncio.timeout(5):
            while not other.is_revoked(principal):  # noqa: ASYNC110 - the state is in memory and tells nobody
                await asyncio.sleep(0.01)
        with pytest.raises(Unauthenticated):
            await other.authenticate("demo", secret, ADDRESS)


async def test_a_known_api_token_goes_on_after_a_restore(
    own_migrated_dsn: str, clock: MovedClock, tmp_path: Path, looked_up: list[bytes]
) -> None:
    async with open_database(own_migrated_dsn) as database, open_authenticator(database, clock) as auth:
        _, _, secret = await make(database, auth, clock)
        before = await auth.authenticate("demo", secret, ADDRESS)
        with (tmp_path / "all.backup").open("wb") as raw:
            await back_up(own_migrated_dsn, raw, "test")
        await restore(own_migrated_dsn, tmp_path / "all.backup", ["demo"], replace=True)
        async with asyncio.timeout(5):
            while not auth.is_revoked(before):  # noqa: ASYNC110 - the state is in memory and tells nobody
                await asyncio.sleep(0.01)
        looked_up.clear()
        for _ in range(3):
            after = await auth.authenticate("demo", secret, ADDRESS)
        assert not auth.is_revoked(after)
        assert after.valid_from_ms != before.valid_from_ms
        assert after.api_token_id == before.api_token_id
        assert len(looked_up) == 1


async def test_a_known_api_token_that_ended_is_looked_for_once(
    database: Database, auth: Authenticator, clock: MovedClock, looked_up: list[bytes]
) -> None:
    user, _, secret = await make(database, auth, clock)
    before = await auth.authenticate("demo", secret, ADDRESS)
    await membership.change_user(Users(database), clock, "demo", user.id, lambda u: u, "other hash")
    async with asyncio.timeout(5):
        while not auth.is_revoked(before):  # noqa: ASYNC110 - the state is in memory and tells nobody
            await asyncio.sleep(0.01)
    looked_up.clear()
    for _ in range(50):
        with pytest.raises(Unauthenticated):
            await auth.authenticate("demo", secret, ADDRESS)
    assert len(looked_up) == 1


async def test_what_has_not_the_form_is_not_looked_for(auth: Authenticator, looked_up: list[bytes]) -> None:
    for token in ("brk_", "brk_" + "x" * 42, "brk_" + "x" * 44, "brk_" + "é" * 43, "BRK_" + "x" * 43):
        with pytest.raises(Unauthenticated):
            await auth.authenticate("demo", token, ADDRESS)
    assert looked_up == []


async def test_a_refused_api_token_is_not_looked_for_again_within_a_minute(
    auth: Authenticator, clock: MovedClock, looked_up: list[bytes]
) -> None:
    for _ in range(50):
        with pytest.raises(Unauthenticated):
            await auth.authenticate("demo", invented(1), ADDRESS)
    assert len(looked_up) == 1
    clock.forward_ms += 60_000
    with pytest.raises(Unauthenticated):
        await auth.authenticate("demo", invented(1), ADDRESS)
    assert len(looked_up) == 2


async def test_invented_api_tokens_of_one_address_cost_a_bounded_number_of_queries(
    database: Database, auth: Authenticator, clock: MovedClock, looked_up: list[bytes]
) -> None:
    _, _, secret = await make(database, auth, clock)
    tries = (auth.authenticate("demo", invented(number), "2001:db8::1") for number in range(500))
    refusals = await asyncio.gather(*tries, return_exceptions=True)
    unknown = sum(isinstance(error, Unauthenticated) for error in refusals)
    slowed = [error for error in refusals if isinstance(error, SlowDown)]
    assert (unknown + len(slowed), unknown) == (500, len(looked_up))
    assert 30 <= unknown < 30 + holders.AT_ONCE
    assert [error for error in slowed if not 55 <= (error.retry_after_s or 0) <= 60] == []
    # Not even the right one, which is not known here yet; those of others and of the next minute are.
    with pytest.raises(SlowDown):
        await auth.authenticate("demo", secret, "2001:db8::2")
    await auth.authenticate("demo", secret, "2001:db8:0:1::1")
    clock.forward_ms += 60_000
    with pytest.raises(Unauthenticated):
        await auth.authenticate("demo", invented(501), "2001:db8::1")


async def test_many_good_api_tokens_of_one_address_are_not_slowed(database: Database) -> None:
    clock = MovedClock()
    async with open_authenticator(database, clock, throttle=ThrottleConfig(per_address=1)) as auth:
        user, _, _ = await make(database, auth, clock)
        credentials = await Users(database).find_credentials("demo", "kim")
        assert credentials is not None
        ids = IdSource(clock)
        secrets = [build_secret(ids.secret()) for _ in range(40)]
        for secret in secrets:
            token = ApiToken.model_construct(
                id=ids.uuid7(), name="m", created_time=to_datetime(clock.now_ms()), expires=None
            )
            await ApiTokens(database).add(
                "demo", Actor(user.id, "kim"), credentials.valid_from_ms, token, hash_secret(secret)
            )
        found = await asyncio.gather(*(auth.authenticate("demo", secret, ADDRESS) for secret in secrets))
        assert {principal.subject for principal in found} == {user.id}


class HeldApiTokens(ApiTokens):
    """Knows none, and answers when it is let."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.running = 0
        self.most = 0

    async def find_holder(self, account: str, secret_hash: bytes, now_ms: int) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        await self.gate.wait()
        self.running -= 1


@asynccontextmanager
async def open_holders(clock: Any, per_address: int = 30) -> AsyncIterator[tuple[Holders, HeldApiTokens]]:
    api_tokens = HeldApiTokens()
    found = Holders(api_tokens, clock, per_address)
    try:
        yield found, api_tokens
    finally:
        await found.close()


async def test_look_ups_of_all_addresses_are_few_at_a_time_and_few_wait(
    clock: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holders, "MOST_WAITING", 50)
    async with open_holders(clock) as (found, api_tokens):
        tries = []
        for number in range(200):
            key, address = hash_secret(invented(number)), f"192.0.2.{number}"
            tries.append(asyncio.create_task(found.find("demo", key, address)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)  # until its look-up waits for its turn
        api_tokens.gate.set()
        results = await asyncio.gather(*tries, return_exceptions=True)
        assert api_tokens.most == holders.AT_ONCE
        assert results.count(None) == 50
        assert sum(isinstance(error, Unavailable) for error in results) == 150


async def test_what_is_remembered_is_bounded(clock: MovedClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holders, "_MOST_COUNTED", 20)
    async with open_holders(clock) as (found, api_tokens):
        api_tokens.gate.set()
        for number in range(50):
            assert await found.find("demo", hash_secret(invented(number)), f"192.0.2.{number}") is None
        assert (len(found._unknown._times), len(found._failures._times)) == (20, 20)
        clock.forward_ms += 60_000
        assert await found.find("demo", hash_secret(invented(99)), "") is None
        assert len(found._unknown._times) == 1
