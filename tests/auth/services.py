"""What the tests of authentication and of users share: a moved clock, a migrated database, services on it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

from broker.auth.authenticator import AuthConfig, Authenticator
from broker.auth.membership import add_user, build_user
from broker.auth.passwords import PasswordConfig
from broker.clock import SystemClock
from broker.domain.users import Role, User
from broker.ids import IdSource
from broker.limits.rate_limits import Rate, RateLimit
from broker.operations.known_gateways import KnownGateways
from broker.operations.known_maintenance import KnownMaintenance
from broker.operations.list_turns import ListTurns
from broker.operations.services import Services
from broker.settings import Settings
from broker.storage.accounts import Accounts
from broker.storage.api_tokens import ApiTokens
from broker.storage.database import Database
from broker.storage.gateways import Gateways
from broker.storage.rate_buckets import RateBuckets
from broker.storage.users import Users

CHEAP = PasswordConfig(memory_kib=8, time_cost=1)
PASSWORD = "correct horse"


class MovedClock(SystemClock):
    """The machine's clock, put forward by hand."""

    def __init__(self) -> None:
        self.forward_ms = 0
        self._stopped_ms: int | None = None

    def stop(self) -> None:
        """From now on wall time moves by hand only."""
        self._stopped_ms = super().now_ms()

    def now_ms(self) -> int:
        return (self._stopped_ms or super().now_ms()) + self.forward_ms

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.forward_ms / 1000


class StoppedClock:
    """A clock that only moves by hand."""

    def __init__(self, ms: int = 1_800_000_000_000) -> None:
        self.ms = ms

    def now_ms(self) -> int:
        return self.ms

    def monotonic_s(self) -> float:
        return self.ms / 1000


@asynccontextmanager
async def open_database(dsn: str, size: int = 4) -> AsyncIterator[Database]:
    """The migrated database at `dsn` with the accounts `demo` and `other`."""
    database = await Database.open(dsn, size=size, timeout_s=5)
    try:
        accounts = Accounts(database)
        await accounts.ensure("demo")
        await accounts.ensure("other")
        yield database
    finally:
        await database.close()


@asynccontextmanager
async def open_authenticator(
    database: Database, clock: Any = None, settings: Settings | None = None, **changes: Any
) -> AsyncIterator[Authenticator]:
    """A started authenticator with cheap hashes; `changes` go into its configuration."""
    clock = clock or SystemClock()
    config = replace(AuthConfig.of(settings or Settings()), passwords=CHEAP)
    auth = Authenticator(database, clock, IdSource(clock), replace(config, **changes))
    try:
        await auth.start()
        yield auth
    finally:
        await auth.close()


@asynccontextmanager
async def open_services(dsn: str, clock: Any = None, **settings: Any) -> AsyncIterator[Services]:
    """The services that log-in and users need; those of other parts are absent."""
    clock = clock or SystemClock()
    async with open_database(dsn) as database, open_authenticator(database, clock) as auth:
        fields: dict[str, Any] = {
            "settings": Settings(**settings),
            "clock": clock,
            "ids": IdSource(clock),
            "database": database,
            "accounts": Accounts(database),
            "users": Users(database),
            "api_tokens": ApiTokens(database),
            "auth": auth,
            "maintenance": KnownMaintenance(database),
            "lists": ListTurns(4, 5.0),
            "known_gateways": KnownGateways(Gateways(database), clock, Settings(**settings)),
            "login_rate": RateLimit(
                "login", RateBuckets(database), clock, per_address=Rate(0, 1), per_account=Rate(0, 1)
            ),
        }
        absent = [name for name in Services.__dataclass_fields__ if name not in fields]
        yield Services(**fields, **{name: cast("Any", None) for name in absent})


async def make_user(
    database: Database,
    auth: Authenticator,
    username: str,
    role: str = "producer",
    *,
    account: str = "demo",
    projects: tuple[str, ...] = (),
) -> User:
    """A stored user whose password is `PASSWORD`."""
    clock = SystemClock()
    user = build_user(clock, IdSource(clock), username=username, role=Role(role), project_ids=list(projects))
    return await add_user(Users(database), account, user, await auth.hash_password(PASSWORD))
