import asyncio
import os
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from broker.gateway.upcalls import (
    TAKEN_AT_ONCE,
    AccessChange,
    Authenticate,
    Idle,
    OperationCall,
    ParsedUpcall,
    UpcallPump,
    parse_upcall,
)

pytestmark = pytest.mark.anyio


class Source:
    """Upcalls behind a real eventfd."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.waiting: deque[tuple[Any, ...]] = deque()

    def put(self, *upcalls: tuple[Any, ...]) -> None:
        self.waiting.extend(upcalls)
        os.eventfd_write(self.fd, 1)

    def upcall_fd(self) -> int:
        return self.fd

    def take(self, limit: int) -> list[tuple[Any, ...]]:
        taken = [self.waiting.popleft() for _ in range(min(limit, len(self.waiting)))]
        if not self.waiting:
            os.eventfd_read(self.fd)
        return taken


@pytest.fixture
def source() -> Iterator[Source]:
    source = Source()
    yield source
    os.close(source.fd)


@pytest.mark.parametrize(
    ("upcall", "request_"),
    [
        (("authenticate", 1, "demo", "t", "::1"), Authenticate(1, "demo", "t", "::1")),
        (
            ("call", 1, 2, "demo", 0, "::1", "ping", b"{}", False),
            OperationCall(1, 2, "demo", 0, "::1", "ping", b"{}", False),
        ),
        (("idle", "demo/program/p"), Idle("demo/program/p")),
        (("access", "demo/program/p", [1, 2]), AccessChange("demo/program/p", (1, 2))),
    ],
)
def test_upcall_has_a_type(upcall: tuple[Any, ...], request_: ParsedUpcall) -> None:
    assert parse_upcall(upcall) == request_


@pytest.mark.parametrize("upcall", [("later", 1), ("idle",), ("idle", "a", "b")])
def test_unknown_upcall_is_refused(upcall: tuple[Any, ...]) -> None:
    with pytest.raises((ValueError, TypeError)):
        parse_upcall(upcall)


async def settle() -> None:
    for _ in range(4):
        await asyncio.sleep(0.001)


async def test_all_are_dispatched_in_order(source: Source) -> None:
    seen: list[ParsedUpcall] = []
    pump = UpcallPump(source, seen.append)
    pump.start()
    count = 2 * TAKEN_AT_ONCE + 1
    source.put(*(("idle", str(index)) for index in range(count)))
    await settle()
    pump.stop()
    assert seen == [Idle(str(index)) for index in range(count)]


async def test_the_loop_has_its_turn_between(source: Source) -> None:
    seen: list[ParsedUpcall] = []
    pump = UpcallPump(source, seen.append)
    pump.start()
    source.put(*(("idle", "") for _ in range(3 * TAKEN_AT_ONCE)))
    counts = set()
    for _ in range(8):
        await asyncio.sleep(0)
        counts.add(len(seen))
    pump.stop()
    assert {TAKEN_AT_ONCE, 2 * TAKEN_AT_ONCE} <= counts


async def test_failure_costs_one_upcall(source: Source, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[ParsedUpcall] = []

    def dispatch(request: ParsedUpcall) -> None:
        if request == Idle("bad"):
            raise RuntimeError("a bug")
        seen.append(request)

    pump = UpcallPump(source, dispatch)
    pump.start()
    source.put(("idle", "bad"), ("unknown",), ("idle", "good"))
    await settle()
    pump.stop()
    assert seen == [Idle("good")]
    assert len(caplog.records) == 2


async def test_stopped_pump_takes_nothing(source: Source) -> None:
    seen: list[ParsedUpcall] = []
    pump = UpcallPump(source, seen.append)
    pump.start()
    pump.stop()
    pump.stop()
    source.put(("idle", "late"))
    await settle()
    assert seen == []
