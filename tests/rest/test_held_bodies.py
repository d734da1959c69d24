"""Bodies that are in memory together: how many bytes, whose, and what others get meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import orjson
import pytest

from broker.metrics import catalogue
from broker.rest.request import SMALL_BYTES
from tests.asgi import ask
from tests.product import Product

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

MOST = 1 << 20
PART = 32 << 10
GIVES_UP_S = 20.0  # only when the test fails


@pytest.fixture(scope="module")
async def small(product: Product) -> Product:
    """A door that holds a megabyte of bodies, of which each may have a quarter."""
    await product.make_program("held")
    return product.with_settings(http_waiting_bytes=MOST, body_limit_bytes=MOST // 4)


def held_bytes(product: Product) -> int:
    (held,) = (s.value for s in product.app.figures() if s.name == catalogue.HTTP_WAITING.name)
    assert isinstance(held, int)
    return held


async def until(claim: Callable[[], bool]) -> None:
    async with asyncio.timeout(GIVES_UP_S):
        while True:
            if claim():
                return
            await asyncio.sleep(0.01)


class SlowBody:
    """A request whose body stops half-way until it is finished."""

    def __init__(self, address: str, token: str | None, parts: Iterable[bytes]) -> None:
        self._address = address
        self._token = token
        self._parts = list(parts)
        self._finished = asyncio.Event()
        self.sent: list[dict[str, Any]] = []

    async def run(self, product: Product) -> None:
        """Send it, and note the answer."""
        headers = {
            "host": "demo.localhost:8000",
            "content-type": "application/json",
            "transfer-encoding": "chunked",
            "x-forwarded-for": self._address,
        }
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"
        path = "/api/v1/servertime"
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 1),
        }
        await product.app(scope, self._receive, self._send)

    def finish(self) -> None:
        self._finished.set()

    @property
    def is_half_way(self) -> bool:
        return not self._parts

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"]) if self.sent else 0

    async def _receive(self) -> dict[str, Any]:
        if self._parts:
            return {"type": "http.request", "body": self._parts.pop(0), "more_body": True}
        await self._finished.wait()
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def _send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)


@asynccontextmanager
async def slow_bodies(product: Product, bodies: list[SlowBody]) -> AsyncIterator[None]:
    """Send bodies until each is half-way or refused; finish them with the block."""
    async with asyncio.timeout(GIVES_UP_S), asyncio.TaskGroup() as tasks:
        for body in bodies:
            tasks.create_task(body.run(product))
        await until(lambda: all(body.is_half_way or body.sent for body in bodies))
        yield
        for body in bodies:
            body.finish()


def strangers(count: int, parts: int = 3) -> list[SlowBody]:
    """Bodies of so many addresses."""
    return [SlowBody(f"192.0.2.{number % 250}", None, [b" " * PART] * parts) for number in range(count)]


async def test_bodies_of_strangers_together_have_a_bound_and_leave_room(small: Product) -> None:
    curve: dict[int, int] = {}
    for count in (2, 4, 8, 16, 32, 64):
        bodies = strangers(count)
        async with slow_bodies(small, bodies):
            curve[count] = held_bytes(small)
            event = orjson.dumps({"event": "A#b", "metadata": {"text": "x" * 1_000}})
            told = await ask(
                small.app, "POST", "/api/v1/programs/held/events", event, token=small.tokens["producer"]
            )
            assert told.status == 201, f"a publish beside {count} bodies: {told.body!r}"
        refused = [body for body in bodies if body.status == 503]
        assert {body.status for body in bodies} - {503} <= {200}
        assert bool(refused) == (count > 4)
        assert held_bytes(small) == 0
    assert curve[2] == 2 * 3 * PART
    assert curve[4] == 4 * 3 * PART
    assert max(curve.values()) <= MOST // 2


async def test_the_refusal_is_ours_and_says_when_to_come_again(small: Product) -> None:
    bodies = strangers(32)
    async with slow_bodies(small, bodies):
        start, part = next(body.sent for body in bodies if body.sent)
    headers = dict(start["headers"])
    assert headers[b"retry-after"] == b"1"
    error = orjson.loads(part["body"])
    assert (error["status"], error["error"]) == (503, "unavailable")


async def test_one_address_has_a_third(small: Product) -> None:
    bodies = [SlowBody("192.0.2.1", None, [b" " * PART] * 4) for _ in range(16)]
    async with slow_bodies(small, bodies):
        assert held_bytes(small) <= MOST // 3 + PART
        (other,) = others = [SlowBody("192.0.2.2", None, [b" " * PART])]
        async with slow_bodies(small, others):
            assert not other.sent
    assert other.status == 200


async def test_users_of_an_account_have_room_beside_one_of_them(small: Product) -> None:
    greedy = [SlowBody("192.0.2.1", small.tokens["user"], [b" " * PART] * 4) for _ in range(16)]
    async with slow_bodies(small, greedy):
        event = orjson.dumps({"event": "A#b"})
        told = await ask(
            small.app, "POST", "/api/v1/programs/held/events", event, token=small.tokens["producer"]
        )
        assert told.status == 201


async def test_short_parts_are_no_more_than_their_bytes(small: Product) -> None:
    """A body that comes in single pairs of bytes is held as one piece."""
    async with AsyncExitStack() as stack:
        (body,) = bodies = [SlowBody("192.0.2.1", None, [b"  "] * 1_000)]
        await stack.enter_async_context(slow_bodies(small, bodies))
        assert held_bytes(small) == 2_000
    assert body.status == 200
    assert held_bytes(small) == 0


class WholeBody(SlowBody):
    """A request whose body is there at once, and whose answer is taken late."""

    async def _receive(self) -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}".ljust(len(self._parts.pop())), "more_body": False}

    async def _send(self, message: dict[str, Any]) -> None:
        await self._finished.wait()
        await super()._send(message)


async def test_a_body_that_is_there_at_once_is_held_unless_it_is_small(small: Product) -> None:
    """So whole bodies have the bound too; small ones have that of a replica's requests."""
    curve: dict[int, int] = {}
    for size in (SMALL_BYTES // 2, SMALL_BYTES, 2 * SMALL_BYTES, 4 * SMALL_BYTES):
        async with slow_bodies(small, [WholeBody("192.0.2.1", None, [b" " * size])]):
            curve[size] = held_bytes(small)
        assert held_bytes(small) == 0
    assert curve == {size: size if size > SMALL_BYTES else 0 for size in curve}


async def test_a_body_whose_client_has_gone_is_given_back(small: Product) -> None:
    body = SlowBody("192.0.2.1", None, [b" " * PART])
    running = asyncio.create_task(body.run(small))
    await until(lambda: held_bytes(small) == PART)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert held_bytes(small) == 0


async def test_the_longest_body_has_room_whatever_the_bound(product: Product) -> None:
    tight = product.with_settings(http_waiting_bytes=MOST, body_limit_bytes=2 * MOST)
    body = b"{}".ljust(2 * MOST)
    for token in (None, tight.tokens["user"]):
        assert (await ask(tight.app, "POST", "/api/v1/servertime", body, token=token)).status == 200
