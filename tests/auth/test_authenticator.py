import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from broker.auth import membership
from broker.auth.authenticator import AuthConfig, Authenticator
from broker.auth.keys import Keyring, KeyringConfig
from broker.auth.passwords import PasswordConfig, Passwords
from broker.auth.throttle import ThrottleConfig
from broker.clock import SystemClock
from broker.domain.audit import Actor
from broker.domain.users import Role, User
from broker.errors import BadCredentials, SlowDown, Unauthenticated, Unavailable
from broker.storage.backup import back_up
from broker.storage.database import Database
from broker.storage.keys import Keys
from broker.storage.restore import restore
from broker.storage.users import Users
from tests.auth.services import (
    PASSWORD,
    MovedClock,
    StoppedClock,
    make_user,
    open_authenticator,
    open_database,
)

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

CLOCK = SystemClock()
PROPAGATION_S = 5.0


@pytest.fixture
async def database(migrated_dsn: str) -> AsyncIterator[Database]:
    async with open_database(migrated_dsn, size=8) as database:
        yield database


@pytest.fixture
async def auth(database: Database) -> AsyncIterator[Authenticator]:
    async with open_authenticator(database) as auth:
        yield auth


async def log_in(auth: Authenticator, username: str, account: str = "demo") -> str:
    return (await auth.log_in(account, username, PASSWORD, "192.0.2.1")).text


async def change(database: Database, user: User, password_hash: str | None = None, **fields: Any) -> None:
    await membership.change_user(
        Users(database), CLOCK, "demo", user.id, lambda u: u.model_copy(update=fields), password_hash
    )


async def eventually(claim: Callable[[], bool]) -> None:
    """Wait for a state that must come within the time that a change may take."""
    async with asyncio.timeout(PROPAGATION_S):
        while not claim():  # noqa: ASYNC110 - the state is in memory and tells nobody
            await asyncio.sleep(0.01)


async def test_log_in_gives_a_token_that_tells_who_it_is(database: Database, auth: Authenticator) -> None:
    user = await make_user(database, auth, "kim", "producer", projects=("a", "b"))
    answer = await auth.log_in("demo", "kim", PASSWORD, "192.0.2.1")
    principal = await auth.authenticate("demo", answer.text)
    assert answer.expires_in_s == 3600
    assert (principal.account, principal.role, principal.subject) == ("demo", Role.PRODUCER, user.id)
    assert (principal.username, principal.project_ids) == ("kim", frozenset({"a", "b"}))
    assert principal.expires_ms == (principal.issued_ms or 0) + 3_600_000
    assert not auth.is_revoked(principal)
    claims = jwt.decode(answer.text, options={"verify_signature": False})
    assert principal.token_id == claims["jti"]
    assert claims["iss"] == "https://localhost"


async def test_known_token_costs_no_query(
    database: Database, auth: Authenticator, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_user(database, auth, "kim")
    token = await log_in(auth, "kim")
    first = await auth.authenticate("demo", token)

    def refuse(_self: Database) -> None:
        raise Unavailable("no database for this test")

    monkeypatch.setattr(Database, "connection", refuse)
    assert await auth.authenticate("demo", token) == first


@pytest.mark.parametrize(("username", "password"), [("kim", "wrong horse"), ("nobody", PASSWORD)])
async def test_wrong_password_and_unknown_user_are_told_alike(
    database: Database, auth: Authenticator, username: str, password: str
) -> None:
    await make_user(database, auth, "kim")
    with pytest.raises(BadCredentials) as caught:
        await auth.log_in("demo", username, password, "192.0.2.1")
    assert caught.value.body() == {
        "error": "bad_credentials",
        "error_description": "the user name or the password is wrong",
        "status": 401,
    }


@pytest.mark.parametrize("username", ["\x00", "x" * 100_000, "kim\x00", "'; DROP TABLE users; --"])
async def test_odd_user_names_are_unknown_ones(auth: Authenticator, username: str) -> None:
    with pytest.raises(BadCredentials):
        await auth.log_in("demo", username, PASSWORD, "")


async def test_unknown_user_costs_one_hash_as_a_known_one_does(
    database: Database, auth: Authenticator, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_user(database, auth, "kim")
    hasher = type(auth._passwords._hasher)
    verified: list[str] = []
    whole = hasher.verify

    def verify(self: Any, stored: str, password: bytes) -> Any:
        verified.append(stored.rsplit("$", 2)[0])
        return whole(self, stored, password)

    monkeypatch.setattr(hasher, "verify", verify)
    for username in ("kim", "nobody"):
        with pytest.raises(BadCredentials):
            await auth.log_in("demo", username, "wrong horse", "")
    assert verified == ["$argon2id$v=19$m=8,t=1,p=1"] * 2


async def test_token_of_one_account_is_none_of_another(database: Database, auth: Authenticator) -> None:
    await make_user(database, auth, "kim")
    await make_user(database, auth, "kim", account="other")
    token = await log_in(auth, "kim")
    await auth.authenticate("demo", token)
    with pytest.raises(Unauthenticated, match="another account"):
        await auth.authenticate("other", token)
    with pytest.raises(BadCredentials):
        await auth.log_in("missing", "kim", PASSWORD, "")


async def test_user_id_of_another_account_is_not_borrowed(database: Database, auth: Authenticator) -> None:
    foreign = await make_user(database, auth, "kim", account="other")
    state = await Users(database).find_credentials("other", "kim")
    assert state is not None
    forged = await auth.issue("demo", foreign, state.valid_from_ms)
    with pytest.raises(Unauthenticated):
        await auth.authenticate("demo", forged.text)


@pytest.mark.parametrize("token", ["", "x", "a.b.c", "\ud800", "é.é.é", "x" * 10_000])
async def test_what_is_no_token_is_refused(auth: Authenticator, token: str) -> None:
    with pytest.raises(Unauthenticated):
        await auth.authenticate("demo", token)


async def test_token_of_an_unknown_key_is_refused(database: Database, auth: Authenticator) -> None:
    await make_user(database, auth, "kim")
    token = await log_in(auth, "kim")
    payload = jwt.decode(token, options={"verify_signature": False})
    foreign = Ed25519PrivateKey.generate()
    for kid in ("unknown", jwt.get_unverified_header(token)["kid"]):
        with pytest.raises(Unauthenticated):
            await auth.authenticate("demo", jwt.encode(payload, foreign, "EdDSA", headers={"kid": kid}))


async def test_token_ends_on_time_also_when_it_is_known(database: Database) -> None:
    clock = MovedClock()
    async with open_authenticator(database, clock, token_lifetime_s=60) as auth:
        await make_user(database, auth, "kim")
        token = await log_in(auth, "kim")
        await auth.authenticate("demo", token)
        clock.forward_ms += 60_000
        for _ in range(2):
            with pytest.raises(Unauthenticated, match="expired"):
                await auth.authenticate("demo", token)


async def test_rotation_logs_nobody_out(database: Database) -> None:
    clock = MovedClock()
    async with open_authenticator(database, clock) as auth, open_authenticator(database, clock) as other:
        await make_user(database, auth, "kim")
        tokens = [await log_in(auth, "kim")]
        await auth.rotate_keys()
        tokens.append(await log_in(auth, "kim"))
        clock.forward_ms += 61_000
        tokens.append(await log_in(auth, "kim"))
        assert len({jwt.get_unverified_header(token)["kid"] for token in tokens}) == 2
        for token in tokens:
            assert (await other.authenticate("demo", token)).username == "kim"
        assert len((await other.jwks())["keys"]) == 2


@pytest.mark.parametrize("listens", [True, False], ids=["notified", "polled"])
@pytest.mark.parametrize("how", ["password", "demotion", "deletion"])
async def test_revocation_is_known_in_another_process_in_time(
    database: Database, auth: Authenticator, how: str, listens: bool
) -> None:
    poll_s = 60.0 if listens else 0.2  # so that only one of both can be the reason
    async with open_authenticator(database, listens=listens, poll_s=poll_s) as other:
        user = await make_user(database, auth, "kim", "producer")
        token = await log_in(auth, "kim")
        principal = await other.authenticate("demo", token)
        heard: list[tuple[str, str, int]] = []
        other.on_revocation(lambda *revocation: heard.append(revocation))
        if how == "password":
            await change(database, user, await auth.hash_password("another horse"))
        elif how == "demotion":
            await change(database, user, role=Role.USER)
        else:
            await membership.remove_user(Users(database), "demo", user.id)
        await eventually(lambda: other.is_revoked(principal))
        with pytest.raises(Unauthenticated):
            await other.authenticate("demo", token)
        await eventually(lambda: bool(heard))
        await other._standings.catch_up()
        assert len(heard) == 1
        assert heard[0][:2] == ("demo", user.id)
        assert heard[0][2] > (principal.valid_from_ms or 0)


@pytest.mark.parametrize("listens", [True, False])
async def test_revoked_key_is_known_in_another_process_in_time(
    database: Database, auth: Authenticator, listens: bool
) -> None:
    poll_s = 60.0 if listens else 0.2  # so that only one of both can be the reason
    async with open_authenticator(database, listens=listens, poll_s=poll_s) as other:
        await make_user(database, auth, "kim", "producer")
        token = await log_in(auth, "kim")
        principal = await other.authenticate("demo", token)
        assert await other.authenticate("demo", token) is principal  # from memory
        heard: list[str] = []
        other.on_key_revocation(heard.append)
        ring = Keyring(Keys(database), CLOCK, KeyringConfig(3600))
        await ring.revoke([str(principal.key_id)], Actor.operator())
        await eventually(lambda: other.is_revoked(principal))
        assert heard == [principal.key_id]
        with pytest.raises(Unauthenticated):
            await other.authenticate("demo", token)
        await eventually(lambda: auth.is_revoked(principal))
        # Who logs in again is let in, by every process.
        again = await log_in(auth, "kim")
        fresh = await other.authenticate("demo", again)
        assert not other.is_revoked(fresh)


async def test_default_poll_is_soon_enough() -> None:
    assert AuthConfig("", 1).poll_s < PROPAGATION_S - 2


async def test_revocation_is_told_of_users_never_seen_here(database: Database, auth: Authenticator) -> None:
    user = await make_user(database, auth, "kim")
    async with open_authenticator(database) as other:
        heard: list[tuple[str, str, int]] = []
        other.on_revocation(lambda *revocation: heard.append(revocation))
        await membership.remove_user(Users(database), "demo", user.id)
        await eventually(lambda: bool(heard))


async def test_token_after_the_change_is_good_at_once_and_ends_earlier_sessions_first(
    database: Database, auth: Authenticator
) -> None:
    async with open_authenticator(database, listens=False, poll_s=60) as other:
        user = await make_user(database, auth, "kim")
        old = await log_in(auth, "kim")
        await other.authenticate("demo", old)
        heard: list[str] = []
        other.on_revocation(lambda *_: heard.append("revoked"))
        await change(database, user, await auth.hash_password(PASSWORD))
        new = await log_in(auth, "kim")
        await other.authenticate("demo", new)
        heard.append("accepted")
        assert heard == ["revoked", "accepted"]
        with pytest.raises(Unauthenticated):
            await other.authenticate("demo", old)
        await other._standings.catch_up()
        assert heard == ["revoked", "accepted"]
        await other.authenticate("demo", new)


async def test_password_that_changes_during_the_log_in_makes_its_token_invalid(
    database: Database, auth: Authenticator
) -> None:
    user = await make_user(database, auth, "kim")
    before = await Users(database).find_credentials("demo", "kim")
    assert before is not None
    await change(database, user, await auth.hash_password("another horse"))
    late = await auth.issue("demo", user, before.valid_from_ms)
    with pytest.raises(Unauthenticated):
        await auth.authenticate("demo", late.text)


async def test_two_changes_within_a_millisecond_are_two_states(
    database: Database, auth: Authenticator
) -> None:
    user = await make_user(database, auth, "kim")
    states = []
    stopped = StoppedClock()
    for _ in range(3):
        await membership.change_user(Users(database), stopped, "demo", user.id, lambda u: u, "hash")
        credentials = await Users(database).find_credentials("demo", "kim")
        assert credentials is not None
        states.append(credentials.valid_from_ms)
    assert states == [stopped.ms, stopped.ms + 1, stopped.ms + 2]


async def test_other_rights_are_followed_without_a_new_token(database: Database, auth: Authenticator) -> None:
    user = await make_user(database, auth, "kim", "user")
    async with open_authenticator(database) as other:
        token = await log_in(auth, "kim")
        await other.authenticate("demo", token)
        changed: list[tuple[str, str]] = []
        revoked: list[object] = []
        other.on_change(lambda *subject: changed.append(subject))
        other.on_revocation(lambda *revocation: revoked.append(revocation))
        await change(database, user, role=Role.PRODUCER, project_ids=["a"])
        await eventually(lambda: bool(changed))
        principal = await other.authenticate("demo", token)
        assert (principal.role, principal.project_ids) == (Role.PRODUCER, frozenset({"a"}))
        assert changed == [("demo", user.id)]
        assert revoked == []


async def test_restart_does_not_revive_a_revoked_token(database: Database, auth: Authenticator) -> None:
    user = await make_user(database, auth, "kim")
    token = await log_in(auth, "kim")
    await change(database, user, await auth.hash_password("another horse"))
    async with open_authenticator(database) as restarted:
        with pytest.raises(Unauthenticated):
            await restarted.authenticate("demo", token)


async def find_name(auth: Authenticator, token: str) -> str | None:
    try:
        return (await auth.authenticate("demo", token)).username
    except Unauthenticated:
        return None


async def test_a_user_that_was_deleted_logs_in_again_after_a_restore(
    own_migrated_dsn: str, tmp_path: Path
) -> None:
    async with open_database(own_migrated_dsn) as database, open_authenticator(database) as auth:
        user = await make_user(database, auth, "kim")
        old = (await auth.log_in("demo", "kim", PASSWORD, "")).text
        with (tmp_path / "all.backup").open("wb") as raw:
            await back_up(own_migrated_dsn, raw, "test")
        await membership.remove_user(Users(database), "demo", user.id)
        await database.execute("DELETE FROM revocations")  # so long ago was it
        async with open_authenticator(database) as other:
            with pytest.raises(Unauthenticated):
                await other.authenticate("demo", old)
            await restore(own_migrated_dsn, tmp_path / "all.backup", ["demo"], replace=True)
            new = (await other.log_in("demo", "kim", PASSWORD, "")).text
            async with asyncio.timeout(5):
                while (await find_name(other, new)) != "kim":  # noqa: ASYNC110 - in memory
                    await asyncio.sleep(0.01)
            with pytest.raises(Unauthenticated):
                await other.authenticate("demo", old)


async def test_eleventh_try_is_refused_with_the_right_password_too(database: Database) -> None:
    async with open_authenticator(database) as auth, open_authenticator(database) as other:
        await make_user(database, auth, "kim")
        for number in range(10):
            with pytest.raises(BadCredentials):
                await (auth, other)[number % 2].log_in("demo", "kim", "wrong horse", f"192.0.2.{number}")
        for one in (auth, other):
            with pytest.raises(SlowDown) as caught:
                await log_in(one, "kim")
            assert 55 <= (caught.value.retry_after_s or 0) <= 60


async def test_tenth_try_may_be_the_right_one(database: Database, auth: Authenticator) -> None:
    await make_user(database, auth, "kim")
    for _ in range(9):
        with pytest.raises(BadCredentials):
            await auth.log_in("demo", "kim", "wrong horse", "192.0.2.1")
    assert await log_in(auth, "kim")


async def test_right_log_ins_at_the_same_time_are_not_slowed(database: Database, auth: Authenticator) -> None:
    await make_user(database, auth, "kim")
    tokens = await asyncio.gather(*(log_in(auth, "kim") for _ in range(40)))
    assert len(set(tokens)) == 40


async def test_guesses_at_the_same_time_are_told_no_more_than_the_limit(database: Database) -> None:
    async with open_authenticator(database, throttle=ThrottleConfig(per_user=3)) as auth:
        await make_user(database, auth, "kim")
        results = await asyncio.gather(
            *(auth.log_in("demo", "kim", f"guess {n}", "") for n in range(20)), return_exceptions=True
        )
        assert sum(isinstance(result, BadCredentials) for result in results) == 3
        assert sum(isinstance(result, SlowDown) for result in results) == 17


async def test_right_password_is_refused_when_the_limit_is_met_while_it_is_checked(
    database: Database, auth: Authenticator, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_user(database, auth, "kim")
    whole = auth._passwords.verify

    async def verify_late(stored: str | None, password: str, _admit: object, **_named: object) -> bool:
        monkeypatch.setattr(auth._passwords, "verify", whole)
        for _ in range(10):
            with pytest.raises(BadCredentials):
                await auth.log_in("demo", "kim", "wrong horse", "")
        return await whole(stored, password)

    monkeypatch.setattr(auth._passwords, "verify", verify_late)
    with pytest.raises(SlowDown):
        await log_in(auth, "kim")


async def test_hash_of_other_parameters_is_renewed_at_log_in(database: Database, auth: Authenticator) -> None:
    await make_user(database, auth, "kim")
    stronger = PasswordConfig(memory_kib=16, time_cost=1)
    async with open_authenticator(database, passwords=stronger) as other:
        token = await log_in(other, "kim")
        stored = await Users(database).find_credentials("demo", "kim")
        assert stored is not None
        assert stored.password_hash.startswith("$argon2id$v=19$m=16,")
        await other.authenticate("demo", token)
        await log_in(other, "kim")


async def test_secrets_are_in_no_log_and_no_repr(
    database: Database, auth: Authenticator, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await make_user(database, auth, "kim")
    answer = await auth.log_in("demo", "kim", PASSWORD, "192.0.2.1")
    principal = await auth.authenticate("demo", answer.text)
    with pytest.raises(BadCredentials) as caught:
        await auth.log_in("demo", "kim", "wrong horse", "192.0.2.1")
    stored = await Users(database).find_credentials("demo", "kim")
    assert stored is not None
    text = caplog.text + repr((answer, principal, caught.value, stored, auth))
    for secret in (PASSWORD, "wrong horse", answer.text, stored.password_hash):
        assert secret not in text


async def test_following_outlives_a_database_that_is_away(
    database: Database, auth: Authenticator, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = await make_user(database, auth, "kim")
    async with open_authenticator(database, listens=False, poll_s=0.05) as other:
        token = await log_in(auth, "kim")
        principal = await other.authenticate("demo", token)
        failed = asyncio.Event()

        async def fail(_self: object, _position: object) -> None:
            failed.set()
            raise Unavailable("away")

        with monkeypatch.context() as patch:
            patch.setattr(type(other._revocations), "since", fail)
            await asyncio.wait_for(failed.wait(), PROPAGATION_S)
            assert await other.authenticate("demo", token) == principal
            await membership.remove_user(Users(database), "demo", user.id)
        await eventually(lambda: other.is_revoked(principal))


async def test_old_rows_are_tidied_up(database: Database, auth: Authenticator) -> None:
    user = await make_user(database, auth, "kim")
    await membership.remove_user(Users(database), "demo", user.id)
    async with database.connection() as connection:
        count = "SELECT count(*) FROM revocations"
        await auth._clean()
        assert await connection.fetchval(count) == 1
        await connection.execute("UPDATE revocations SET created_time = now() - interval '7201 seconds'")
        await auth._clean()
        assert await connection.fetchval(count) == 0
    assert len(await Keys(database).list()) == 1


async def test_close_may_be_called_twice(database: Database) -> None:
    async with open_authenticator(database) as auth:
        await auth.close()


async def test_of_many_wrong_log_ins_at_once_few_are_checked(
    auth: Authenticator, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = 0
    check = Passwords._matches

    def count(self: Passwords, stored: str, encoded: bytes) -> bool:
        nonlocal checked
        checked += 1
        return check(self, stored, encoded)

    monkeypatch.setattr(Passwords, "_matches", count)
    tries = (auth.log_in("demo", f"nobody {number}", "wrong", "192.0.2.77") for number in range(120))
    refusals = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(isinstance(error, BadCredentials) for error in refusals) == 30
    assert sum(isinstance(error, SlowDown) for error in refusals) == 90
    assert 30 <= checked < 60, "the limit, and those under way when it is met"
