"""The product in one process, real and without Ray: PostgreSQL, owner, counter, services, the HTTP door."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, TypeVar, cast

import httpx

from broker.actors.placement import slot_name
from broker.auth.authenticator import Authenticator
from broker.domain.idempotency import KeptResult, Repeated
from broker.errors import BrokerError
from broker.ids import IdSource
from broker.operations.health import ProductHealth
from broker.operations.known_maintenance import KnownMaintenance
from broker.operations.registry import Registry
from broker.operations.services import Services, build_services
from broker.owners import commands
from broker.owners.commands import Kept
from broker.owners.owner import Owner
from broker.resources.catalogue import build_registry
from broker.rest import app
from broker.rest.app import RestApp, build_app
from broker.settings import Settings
from broker.storage.migrations import migrate
from broker.tracing.opening import open_tracer
from broker.voting.counting.batches import BatchReply, VoteBatch
from broker.voting.counting.counter import Counter
from broker.voting.counting.linked_counters import LinkedCounters
from broker.voting.counting.placement import COUNTER
from tests.auth.services import MovedClock, make_user, open_authenticator, open_database

WAIT_S = 10.0
ROLES = ("admin", "producer", "user", "client")


R = TypeVar("R")


class DirectOwners:
    """The port to the owners, over one owner in this process; a command waits for `wait_s`."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.wait_s = WAIT_S
        self.nudged: list[str] = []

    async def submit(self, command: commands.ProgramCommand[R]) -> R:
        (reply,) = await self.owner.submit([cast("commands.Command", command)], self.wait_s)
        if isinstance(reply, BrokerError):
            raise reply
        if isinstance(reply, Kept):
            raise Repeated(KeptResult(reply.status, reply.body))
        return cast("R", reply)

    async def value_stored(self, account: str, project_id: str) -> None:
        self.owner.nudge(account, f"storage:{project_id}")

    async def votes_counted(self, account: str, program_id: str) -> None:
        self.owner.nudge(account, f"responses:{program_id}")

    async def programs_changed(self, account: str) -> None:
        self.nudged.append(account)
        self.owner.nudge(account)


class CounterLink:
    """Calls a counter of this process."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter

    async def call(self, method: str, *arguments: Any, timeout_s: float) -> BatchReply:
        assert method == "submit"
        batch: VoteBatch = arguments[0]
        return await self._counter.submit(batch, arguments[1])

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class Product:
    """Everything that runs, and a token for each role.

    `tokens` are of users of the project `own`; those of `other` belong to the account `other`.
    """

    services: Services
    app: RestApp
    owners: DirectOwners
    clock: MovedClock
    health: dict[str, str]
    tokens: dict[str, str] = field(default_factory=dict)
    other: dict[str, str] = field(default_factory=dict)

    def door(self, role: str | None = "admin", *, account: str = "demo", **headers: str) -> httpx.AsyncClient:
        """A client of the HTTP door with the token of a role; None is without one."""
        tokens = self.tokens if account == "demo" else self.other
        if role is not None:
            headers["Authorization"] = f"Bearer {tokens[role]}"
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app, raise_app_exceptions=False),
            base_url=f"http://{account}.localhost:8000/api/v1",
            headers=headers,
        )

    def with_settings(self, **changes: Any) -> "Product":
        """The same product with other settings at its door."""
        settings = replace(self.services.settings, **changes)
        health = health_of(settings, self.clock, self.services.maintenance, self.health)
        services = replace(self.services, settings=settings, health=health)
        return replace(self, services=services, app=app_of(services))

    async def make_program(self, program_id: str, account: str = "demo", **fields: Any) -> dict[str, Any]:
        """A new program."""
        async with self.door(account=account) as door:
            answer = await door.post("/programs", json={"id": program_id, "name": program_id} | fields)
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    async def publish(self, program_id: str, *events: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Published events."""
        async with self.door() as door:
            answer = await door.post(f"/programs/{program_id}/events", json={"events": list(events)})
        assert answer.status_code == 201, answer.text
        return list(answer.json()["events"])


def health_of(
    settings: Settings, clock: MovedClock, maintenance: KnownMaintenance, parts: dict[str, str]
) -> ProductHealth:
    """The health of parts that are as `parts` says."""

    async def check() -> dict[str, str]:
        return parts

    return ProductHealth(settings, clock, maintenance, check)


def app_of(services: Services) -> RestApp:
    """The HTTP door of services."""
    return build_app(services, _registry())


@cache
def _registry() -> Registry:
    return build_registry()


# A document takes a fifth of a second of processor time, and most products of tests have the same settings.
app._DOCUMENTS = {path: cache(describe) for path, describe in app._DOCUMENTS.items()}


@asynccontextmanager
async def open_product(dsn: str, **settings: Any) -> AsyncIterator[Product]:
    """A running product on an empty database."""
    clock = MovedClock()
    ids = IdSource(clock)
    # A call in process comes from 127.0.0.1, and says itself for whom.
    known = Settings(**{"database_pool": 4, "trusted_proxies": ("127.0.0.0/8",), **settings})
    await migrate(dsn)
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(open_database(dsn))
        auth = await stack.enter_async_context(open_authenticator(database, clock, known))
        maintenance = KnownMaintenance(database)
        stack.push_async_callback(maintenance.close)
        await maintenance.start()
        owner = await Owner.start(replace(known, database_pool=2), dsn, 0, clock=clock)
        stack.push_async_callback(owner.close)
        owners = DirectOwners(owner)
        counter = await Counter.start(known, dsn, slot_name(COUNTER, 0), clock=clock)
        stack.push_async_callback(counter.close)
        counters = LinkedCounters(known, clock, ids, [CounterLink(counter)])
        stack.push_async_callback(counters.close)
        tracer = open_tracer(known, "api", clock)
        if tracer is not None:
            stack.push_async_callback(tracer.close)
        health = {"database": "ok", "owners": "ok", "gateways": "ok"}
        services = build_services(
            known,
            clock,
            ids,
            database,
            auth=auth,
            owners=owners,
            counters=counters,
            health=health_of(known, clock, maintenance, health),
            maintenance=maintenance,
            tracer=tracer,
        )
        stack.push_async_callback(services.close)
        product = Product(services, app_of(services), owners, clock, health)
        for account, tokens in (("demo", product.tokens), ("other", product.other)):
            for role in ROLES:
                tokens[role] = await _token(product, auth, account, role)
        yield product


async def _token(product: Product, auth: Authenticator, account: str, role: str) -> str:
    user = await make_user(product.services.database, auth, role, role, account=account, projects=("own",))
    credentials = await product.services.users.find_credentials(account, user.username)
    assert credentials is not None
    return (await auth.issue(account, user, credentials.valid_from_ms)).text
