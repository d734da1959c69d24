"""A gateway with everything behind it, in one process: native server, owner, PostgreSQL; and its clients.

Only Ray is left out: the owner is called directly where `OwnerLink` would make an actor call.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from broker.auth.authenticator import Authenticator
from broker.clock import Clock
from broker.gateway.gateway import Gateway
from broker.operations.catalogue import build_registry
from broker.operations.services import Services
from broker.owners import ray_client, ray_feed
from broker.owners.owner import Owner
from broker.owners.ray_link import OwnerLost
from broker.settings import Settings
from broker.storage.accounts import Accounts
from broker.storage.database import Database
from broker.storage.events import Events
from broker.storage.idempotency import Idempotency
from broker.storage.imports import Imports
from broker.storage.programs import Programs
from broker.storage.users import Users
from broker.ids import IdSource
from tests.auth.services import PASSWORD, MovedClock, make_user, open_authenticator, open_database

WAIT_S = 5.0


class DirectLink:
    """Calls the one owner of this process; `is_cut` makes it unreachable."""

    owner: Owner | None = None
    is_cut = False

    def __init__(self, index: int) -> None:
        assert index == 0

    async def call(self, method: str, *arguments: object, timeout_s: float) -> Any:
        if self.owner is None or DirectLink.is_cut:
            await asyncio.sleep(0.01)
            raise OwnerLost(method)
        answer = getattr(self.owner, method)(*arguments)
        if not asyncio.iscoroutine(answer):
            return answer
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError as error:
            raise OwnerLost(method) from error


class RpcError(Exception):
    """A JSON-RPC error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['code']} {error['message']} {error.get('data')}")
        self.code = error["code"]
        self.name = error["message"]
        self.data = error.get("data", {})

    @property
    def fields(self) -> list[str]:
        return [fault["field"] for fault in self.data.get("errors", [])]


class Viewer:
    """A client of the gateway."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._last_id = 0
        self._reading = asyncio.create_task(self._read())

    async def call(self, method: str, /, **params: Any) -> Any:
        """The result of a call. Raises RpcError."""
        return await self.answer(await self.send(method, **params))

    async def send(self, method: str, /, **params: Any) -> int:
        """Send a call; `answer` waits for its result."""
        message = self.build(method, **params)
        await self.socket.send(orjson.dumps(message).decode())
        return int(message["id"])

    def build(self, method: str, /, **params: Any) -> dict[str, Any]:
        """The message of a call, whose answer is waited for under its id."""
        self._last_id += 1
        self._answers[self._last_id] = asyncio.get_running_loop().create_future()
        return {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params}

    async def answer(self, number: int) -> Any:
        async with asyncio.timeout(WAIT_S):
            message = await self._answers[number]
        if "error" in message:
            raise RpcError(message["error"])
        return message["result"]

    async def next(self, method: str | None = None) -> dict[str, Any]:
        """The params of the next notification, which must be a `method`."""
        async with asyncio.timeout(WAIT_S):
            message = await self.told.get()
        assert method is None or message["method"] == method, message
        return message["params"] if method else message

    async def pushes(self, count: int) -> list[int]:
        """The seqs of the next `count` notifications."""
        return [(await self.next())["params"]["seq"] for _ in range(count)]

    async def closed(self) -> tuple[int | None, str]:
        """The close code and reason, when the server has closed."""
        async with asyncio.timeout(WAIT_S):
            await self.socket.wait_closed()
            await self._reading
        return self.socket.close_code, self.socket.close_reason or ""

    async def close(self) -> None:
        await self.socket.close()
        await self._reading

    async def _read(self) -> None:
        try:
            async for text in self.socket:
                parsed = orjson.loads(text)
                for message in parsed if isinstance(parsed, list) else [parsed]:
                    self._take(message)
        except ConnectionClosed:
            pass
        for future in self._answers.values():
            if not future.done():
                future.cancel()

    def _take(self, message: dict[str, Any]) -> None:
        if "method" in message:
            self.told.put_nowait(message)
        elif message["id"] in self._answers:
            self._answers[message["id"]].set_result(message)
        else:
            self.told.put_nowait({"method": "unasked", "params": message})


@dataclass
class World:
    """Everything, with users of each role in account `demo`; the producer and the user belong to `sport`."""

    services: Services
    gateway: Gateway
    owner: Owner
    clock: MovedClock
    port: int

    def __post_init__(self) -> None:
        self._programs = 0
        self._tokens: dict[tuple[str, str], str] = {}
        self.viewers: list[Viewer] = []

    async def token(self, username: str, account: str = "demo") -> str:
        """A token of the user, the same one each time."""
        key = (account, username)
        if key not in self._tokens:
            self._tokens[key] = await self.new_token(username, account)
        return self._tokens[key]

    async def new_token(self, username: str, account: str = "demo") -> str:
        return (await self.services.auth.log_in(account, username, PASSWORD, "")).text

    async def join(
        self, username: str | None = None, *, account: str = "demo", query: str = "", **options: Any
    ) -> Viewer:
        """A connected client, with a token of the user or anonymous."""
        headers = dict(options.pop("headers", {}))
        if username is not None:
            headers["Authorization"] = f"Bearer {await self.token(username, account)}"
        socket = await connect(
            f"ws://{account}.localhost:{self.port}/api/v1/ws{query}",
            host="127.0.0.1",
            port=self.port,
            additional_headers=headers,
            proxy=None,
            **options,
        )
        viewer = Viewer(socket)
        self.viewers.append(viewer)
        return viewer

    async def leave(self) -> None:
        """Close every client."""
        viewers, self.viewers = self.viewers, []
        for viewer in viewers:
            await viewer.close()

    async def program(self, **fields: Any) -> str:
        """A new program's id."""
        self._programs += 1
        program_id = f"p{self._programs}"
        admin = await self.admin()
        await admin.call("admin/createProgram", id=program_id, name=program_id, **fields)
        return program_id

    async def admin(self) -> Viewer:
        for viewer in self.viewers:
            if getattr(viewer, "is_admin", False):
                return viewer
        viewer = await self.join("admin")
        viewer.is_admin = True  # type: ignore[attr-defined]  # a mark of this test alone
        return viewer

    async def publish(self, program_id: str, count: int = 1) -> None:
        """Publish `count` events."""
        admin = await self.admin()
        events = [{"event": "Score#update", "metadata": {"n": index}} for index in range(count)]
        for start in range(0, count, 1_000):
            await admin.call("producer", programId=program_id, events=events[start : start + 1_000])


@asynccontextmanager
async def open_world(dsn: str, **changes: Any) -> AsyncIterator[World]:
    """A started world on an empty database; `changes` go into the settings."""
    clock = MovedClock()
    changes = {"owners": 1, "gateway_loops": 1, "drain_s": 0.5, **changes}
    settings = Settings(**changes)
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(open_database(dsn, size=6))
        auth = await stack.enter_async_context(
            open_authenticator(database, clock, token_lifetime_s=settings.token_lifetime_s)
        )
        for role in ("admin", "producer", "user", "client"):
            await make_user(database, auth, role, role, projects=("sport",))
        await make_user(database, auth, "outsider", "user", projects=("news",))
        await make_user(database, auth, "admin", "admin", account="other")
        owner = await Owner.start(settings, dsn, 0)
        stack.push_async_callback(owner.close)
        services = _services(settings, clock, database, auth, owner)
        stack.push_async_callback(services.owners.close)  # type: ignore[attr-defined]  # beyond the port
        gateway = Gateway(
            services,
            build_registry(),
            lambda sink: ray_feed.RayFeed(settings, clock, services.ids, sink),
            host="127.0.0.1",
            port=0,
        )
        stack.push_async_callback(gateway.stop)
        world = World(services, gateway, owner, clock, await gateway.start())
        try:
            yield world
        finally:
            await world.leave()


def _services(
    settings: Settings, clock: Clock, database: Database, auth: Authenticator, owner: Owner
) -> Services:
    DirectLink.owner, DirectLink.is_cut = owner, False
    ray_feed.OwnerLink = DirectLink  # type: ignore[misc,assignment]
    ray_client.OwnerLink = DirectLink  # type: ignore[misc,assignment]
    ids = IdSource(clock)
    return Services(
        settings=settings,
        clock=clock,
        ids=ids,
        database=database,
        accounts=Accounts(database, clock),
        users=Users(database),
        programs=Programs(database, clock),
        events=Events(database),
        imports=Imports(database),
        idempotency=Idempotency(database),
        auth=auth,
        owners=ray_client.RayOwners(settings, clock, ids),
    )


def seqs(events: Sequence[dict[str, Any]]) -> list[int]:
    """The seqs of the events that a subscribe answered."""
    return [event["seq"] for event in events]
