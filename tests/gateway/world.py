"""A gateway with everything behind it, in one process: native server, owner, PostgreSQL; and its clients.

Only Ray is left out: the owner is called directly where `SlotLink` would call it over a connection.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence, Set
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import orjson
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from broker.actors.link import LinkLost
from broker.gateway.gateway import Gateway
from broker.owners.calls import OWNER_CALLS
from broker.owners.feed import Feed, Sink
from broker.owners.linked_feed import LinkedFeed
from broker.owners.owner import Owner
from broker.owners.placement import OWNER
from broker.owners.relay import Relay
from broker.owners.upstreams import OwnRelay, Upstreams
from broker.resources.catalogue import build_registry
from broker.rpc.calls import Calls
from tests.auth.services import make_user
from tests.gateway.described import faults_of_answer, faults_of_notification
from tests.product import Product, open_product

WAIT_S = 5.0
HELD_OF_EACH = 20  # messages of one kind that a viewer holds against the document; it takes 0.2 ms


class DirectLink:
    """Calls the one owner of a world; `is_cut` makes it unreachable, `cut` for some calls.

    Each world has a subclass of its own.

    Calls and answers are bytes on the way, as over a connection.
    """

    owner: ClassVar[Owner]
    is_cut: ClassVar[bool] = False
    cut: ClassVar[Set[str]] = frozenset()

    def __init__(self, kind: str, index: int, calls: Calls[Any]) -> None:
        assert (kind, index) == ("owner", 0)
        self._calls = calls

    async def call(self, method: str, *arguments: object, timeout_s: float) -> Any:
        if self.is_cut or method in self.cut:
            await asyncio.sleep(0.01)
            raise LinkLost(method)
        _, _, body = self._calls.unpack_call(self._calls.pack_call(1, method, arguments))
        answer = getattr(self.owner, method)(*self._calls.read_arguments(method, body))
        if asyncio.iscoroutine(answer):
            try:
                async with asyncio.timeout(timeout_s):
                    answer = await answer
            except TimeoutError as error:
                raise LinkLost(method) from error
        _, kind, result = self._calls.unpack_reply(self._calls.pack_result(1, answer))
        return self._calls.read_reply(method, kind, result)

    def close(self) -> None:
        """Nothing is open."""

    @staticmethod
    def open_none(name: str) -> "DirectLink":
        """A link to another relay; there is none."""
        raise AssertionError(name)


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
        self._methods: dict[int, str] = {}
        self._held: dict[str, int] = {}
        self.faults: list[str] = []
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
        self._methods[self._last_id] = method
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
        self._hold(message)
        if "method" in message:
            self.told.put_nowait(message)
        elif message["id"] in self._answers:
            self._answers[message["id"]].set_result(message)
        else:
            self.told.put_nowait({"method": "unasked", "params": message})

    def _hold(self, message: dict[str, Any]) -> None:
        """Hold what has come against the AsyncAPI document; `faults` has what differs."""
        told, method = message.get("method"), self._methods.get(message.get("id", 0), "")
        name = str(told or method)
        self._held[name] = self._held.get(name, 0) + 1
        if self._held[name] <= HELD_OF_EACH and name:
            self.faults += faults_of_notification(message) if told else faults_of_answer(method, message)


@dataclass
class World:
    """The product with a gateway. Users are of the project `own`, but for the user `outsider`."""

    product: Product
    gateway: Gateway
    port: int
    link: type[DirectLink]
    relay: Relay | None = None

    def __post_init__(self) -> None:
        self.viewers: list[Viewer] = []
        self._admins: dict[str, Viewer] = {}
        self._programs = 0

    async def new_user(self, username: str, role: str, *projects: str) -> str:
        """The token of a new user."""
        services = self.product.services
        auth: Any = services.auth
        user = await make_user(services.database, auth, username, role, projects=projects)
        credentials = await services.users.find_credentials("demo", user.username)
        assert credentials is not None
        return (await services.auth.issue("demo", user, credentials.valid_from_ms)).text

    async def join(
        self,
        role: str | None = None,
        *,
        token: str | None = None,
        account: str = "demo",
        query: str = "",
        headers: dict[str, str] | None = None,
        **options: Any,
    ) -> Viewer:
        """A connected client, with the token of a role or anonymous."""
        if role is not None:
            token = (self.product.tokens if account == "demo" else self.product.other)[role]
        headers = dict(headers or {})
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        settings = self.product.services.settings
        scheme = "wss" if settings.ws_tls_certificate else "ws"
        if settings.ws_tls_certificate and "ssl" not in options:
            options["ssl"] = ssl.create_default_context(cafile=settings.ws_tls_certificate)
        socket = await connect(
            f"{scheme}://{account}.localhost:{self.port}/api/v1/ws{query}",
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
        self._admins.clear()
        for viewer in viewers:
            await viewer.close()
        faults = [fault for viewer in viewers for fault in viewer.faults]
        assert faults == [], faults

    async def admin(self, account: str = "demo") -> Viewer:
        """An admin's connection, the same one within a test."""
        if account not in self._admins:
            self._admins[account] = await self.join("admin", account=account)
        return self._admins[account]

    async def program(self, account: str = "demo", **fields: Any) -> str:
        """A new program's id."""
        self._programs += 1
        program_id = f"p{self._programs}"
        admin = await self.admin(account)
        await admin.call("admin/createProgram", id=program_id, name=program_id, **fields)
        return program_id

    async def publish(self, program_id: str, count: int = 1, *, bytes_each: int = 0) -> None:
        """Publish `count` events."""
        admin = await self.admin()
        event = {"event": "Score#update", "metadata": {"text": "x" * bytes_each}}
        page = max(1, min(1_000, 500_000 // (bytes_each + 100)))
        for start in range(0, count, page):
            events = [event] * min(page, count - start)
            await admin.call("producer", programId=program_id, events=events)

    async def set_access(self, program_id: str, access: str, project_id: str | None = None) -> None:
        """Change who may read a program."""
        admin = await self.admin()
        program = await admin.call("getProgram", programId=program_id)
        fields = {name: program.get(name) for name in ("name", "scheduledStartTime", "scheduledEndTime")}
        await admin.call(
            "updateProgram",
            programId=program_id,
            id=program_id,
            **fields,
            access=access,
            projectId=project_id,
        )


@asynccontextmanager
async def open_world(dsn: str, *, is_relayed: bool = False, **settings: Any) -> AsyncIterator[World]:
    """A started world on an empty database; with `is_relayed` a relay is between gateway and owner."""
    settings = {"owners": 1, "gateway_loops": 1, **settings}
    async with open_product(dsn, **settings) as product, AsyncExitStack() as stack:
        link = type("Link", (DirectLink,), {"owner": product.owners.owner})
        relay = open_relay(product, link) if is_relayed else None
        if relay is not None:
            stack.push_async_callback(relay.close)
        gateway, port = await stack.enter_async_context(open_gateway(product, link, relay))
        world = World(product, gateway, port, link, relay)
        stack.push_async_callback(world.leave)
        yield world


def open_relay(product: Product, link: type[DirectLink]) -> Relay:
    """A relay that follows the owner."""
    services = product.services
    return Relay(services.settings, services.clock, services.ids, [link(OWNER, 0, OWNER_CALLS)])


@asynccontextmanager
async def open_gateway(
    product: Product, link: type[DirectLink], relay: Relay | None = None
) -> AsyncIterator[tuple[Gateway, int]]:
    """A started gateway, with its port; it follows the relay if there is one."""
    services, upstreams = product.services, None
    if relay is not None:
        upstreams = Upstreams("it", 1, services.clock, DirectLink.open_none, OwnRelay(relay))
        upstreams.learn(["it"])

    def make_feed(sink: Sink) -> Feed:
        links = [link(OWNER, 0, OWNER_CALLS)]
        return LinkedFeed(services.settings, services.clock, services.ids, sink, links, upstreams=upstreams)

    gateway = Gateway(services, build_registry(), make_feed, host="127.0.0.1", port=0)
    try:
        yield gateway, await gateway.start()
    finally:
        await gateway.stop()


def seqs(events: Sequence[dict[str, Any]]) -> list[int]:
    """The seqs of the events that a subscribe answered."""
    return [event["seq"] for event in events]
