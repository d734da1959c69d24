from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from broker.auth.authenticator import Authenticator
from broker.domain.users import Role, User
from broker.errors import Unauthenticated
from broker.gateway.sessions import Sessions, SignIns
from broker.storage.database import Database
from tests.auth.services import PASSWORD, MovedClock, make_user, open_authenticator, open_database

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


@dataclass
class Grants:
    """What native code would have been told."""

    granted: list[tuple[str, int, int, str]] = field(default_factory=list)
    revoked: list[str] = field(default_factory=list)

    def grant(
        self, account: str, token: str, principal: int, reader: int, subject: str, expires_ms: int
    ) -> None:
        self.granted.append((account, principal, reader, subject))

    def replace(
        self, account: str, token: str, principal: int, reader: int, subject: str, expires_ms: int
    ) -> int:
        self.granted.append((account, principal, reader, subject))
        return 1

    def revoke(self, account: str, subject: str) -> int:
        self.revoked.append(subject)
        return 1


@dataclass
class Bench:
    database: Database
    auth: Authenticator
    clock: MovedClock
    grants: Grants
    sessions: Sessions

    async def token(self, user: User, account: str = "demo") -> str:
        return (await self.auth.log_in(account, user.username, PASSWORD, "")).text

    async def user(self, name: str, role: str, *projects: str, account: str = "demo") -> User:
        return await make_user(self.database, self.auth, name, role, account=account, projects=projects)


@asynccontextmanager
async def open_bench(dsn: str, limit: int = 100) -> AsyncIterator[Bench]:
    clock = MovedClock()
    async with open_database(dsn) as database, open_authenticator(database, clock) as auth:
        grants = Grants()
        yield Bench(database, auth, clock, grants, Sessions(grants, auth, clock, limit=limit))


async def test_token_becomes_a_session_with_its_principal(migrated_dsn: str) -> None:
    async with open_bench(migrated_dsn) as bench:
        user = await bench.user("paul", "producer", "news")
        session = await bench.sessions.open("demo", await bench.token(user))
        assert session.principal.role is Role.PRODUCER
        assert session.principal.project_ids == {"news"}
        assert bench.sessions.find("demo", session.number) == session
        assert bench.grants.granted[0][:3] == ("demo", session.number, session.reader)


async def test_same_token_has_one_session(migrated_dsn: str) -> None:
    async with open_bench(migrated_dsn) as bench:
        token = await bench.token(await bench.user("paul", "producer"))
        first = await bench.sessions.open("demo", token)
        second = await bench.sessions.open("demo", token)
        assert first.number == second.number
        assert len(bench.sessions) == 1
        assert len(bench.grants.granted) == 2


async def test_bad_token_is_refused(migrated_dsn: str) -> None:
    async with open_bench(migrated_dsn) as bench:
        with pytest.raises(Unauthenticated):
            await bench.sessions.open("demo", "no.token.this")
        assert bench.grants.granted == []


async def test_session_belongs_to_its_account(migrated_dsn: str) -> None:
    async with open_bench(migrated_dsn) as bench:
        token = await bench.token(await bench.user("paul", "producer"))
        session = await bench.sessions.open("demo", token)
        assert bench.sessions.find("other", session.number) is None
        with pytest.raises(Unauthenticated):
            await bench.sessions.open("other", token)


async def test_equal_rights_share_a_reader_class(migrated_dsn: str) -> None:
    async with open_bench(migrated_dsn) as bench:

        async def reader(name: str, role: str, *projects: str, account: str = "demo") -> int:
            user = await bench.user(name, role, *projects, account=account)
            return (await bench.sessions.open(account, await bench.token(user, account))).reader

        one = await reader("a", "user", "news", "sport")
        assert await reader("b", "user", "sport", "news") == one
        others = [
            await reader("c", "user", "news"),
            await reader("d", "producer", "news", "sport"),
            await reader("e", "user", "news", "sport", account="other"),
            await reader("f", "client", "news"),
            await reader("g", "admin", "news"),
        ]
        assert len({one, *others}) == 6
        # Projects make no difference to a client, which reads nothing private, and to an admin.
        assert await reader("h", "client") == others[3]
        assert await reader("i", "admin") == others[4]
        somebody = bench.sessions.reader(one)
        assert somebody is not None
        assert (somebody.role, somebody.project_ids) == (Role.USER, {"news", "sport"})


async def test_expired_session_is_anonymous(migrated_dsn: str) -> None:
    async with open_bench(migrated_dsn) as bench:
        session = await bench.sessions.open("demo", await bench.token(await bench.user("p", "user")))
        assert session.principal.expires_ms is not None
        left_ms = session.principal.expires_ms - bench.clock.now_ms()
        bench.clock.forward_ms += left_ms - 2_000
        assert bench.sessions.find("demo", session.number) is not None
        assert bench.sessions.sweep() == 0
        bench.clock.forward_ms += 2_000
        assert bench.sessions.find("demo", session.number) is None
        assert len(bench.sessions) == 0


async def test_sweep_forgets_what_has_expired(migrated_dsn: str) -> None:
    async with open_bench(migrated_dsn) as bench:
        await bench.sessions.open("demo", await bench.token(await bench.user("p", "user")))
        bench.clock.forward_ms += 3_600_000 + 1_000
        assert bench.sessions.sweep() == 1
        assert len(bench.sessions) == 0


async def test_revocation_ends_earlier_sessions_only(migrated_dsn: str) -> None:
    async with open_bench(migrated_dsn) as bench:
        user = await bench.user("p", "user")
        old = await bench.sessions.open("demo", await bench.token(user))
        valid_from_ms = old.principal.valid_from_ms
        assert valid_from_ms is not None
        assert bench.sessions.revoke("demo", user.id, valid_from_ms) == 0
        assert bench.sessions.revoke("other", user.id, valid_from_ms + 1) == 0
        assert bench.sessions.revoke("demo", user.id, valid_from_ms + 1) == 1
        assert bench.sessions.find("demo", old.number) is None
        assert bench.grants.revoked == [bench.grants.granted[0][3]]


async def test_least_used_session_goes_at_the_bound(migrated_dsn: str) -> None:
    async with open_bench(migrated_dsn, limit=2) as bench:
        tokens = [await bench.token(await bench.user(name, "user")) for name in ("a", "b", "c")]
        first, second = [await bench.sessions.open("demo", token) for token in tokens[:2]]
        bench.sessions.find("demo", first.number)
        await bench.sessions.open("demo", tokens[2])
        assert bench.sessions.find("demo", second.number) is None
        assert bench.sessions.find("demo", first.number) is not None
        # Native code would otherwise bring the number back with the next handshake.
        assert bench.grants.revoked == [bench.grants.granted[1][3]]


@pytest.fixture
def sign_ins() -> SignIns:
    return SignIns(limit=2)


def test_calls_sent_with_a_login_belong_to_its_session(sign_ins: SignIns) -> None:
    sign_ins.add(7, 3)
    assert [sign_ins.resolve(7, 0), sign_ins.resolve(7, 0)] == [3, 3]
    assert sign_ins.resolve(8, 0) == 0


def test_native_code_is_believed_once_it_shows_the_session(sign_ins: SignIns) -> None:
    sign_ins.add(7, 3)
    assert sign_ins.resolve(7, 3) == 3
    assert sign_ins.resolve(7, 0) == 0  # it has expired or was revoked since


def test_sign_ins_are_bounded(sign_ins: SignIns) -> None:
    for conn in (1, 2, 3):
        sign_ins.add(conn, 10 + conn)
    assert [sign_ins.resolve(conn, 0) for conn in (1, 2, 3)] == [0, 12, 13]
