"""`broker.gateway.handshakes`: what waits while tokens are checked is bounded."""

import asyncio
from typing import Any

import pytest

from broker.gateway.handshakes import CHECKED_AT_ONCE, MAX_WAITING_BYTES, Handshakes
from broker.gateway.upcalls import Authenticate

pytestmark = pytest.mark.anyio


class Door:
    """Takes the place of native code, and of the sessions: it opens when it is told to."""

    def __init__(self) -> None:
        self.resumed: asyncio.Queue[int] = asyncio.Queue()
        self.refused: list[tuple[int, int]] = []
        self.may_open = asyncio.Event()

    async def open(self, account: str, token: str, address: str) -> None:
        await self.may_open.wait()

    def resume(self, conn: int) -> None:
        self.resumed.put_nowait(conn)

    def refuse(self, conn: int, status: int, body: bytes, headers: Any = ()) -> None:
        self.refused.append((conn, status))


async def test_tokens_that_wait_are_bounded_by_their_bytes() -> None:
    door: Any = Door()
    handshakes = Handshakes(door, door)
    handshakes.start()
    token = "t" * (MAX_WAITING_BYTES // 64)
    checked = [Authenticate(conn, "demo", token, "") for conn in range(CHECKED_AT_ONCE)]
    waiting = [Authenticate(CHECKED_AT_ONCE + conn, "demo", token, "") for conn in range(66)]
    for handshake in checked:
        handshakes.submit(handshake)
    await asyncio.sleep(0)  # each worker takes one
    for handshake in waiting:
        handshakes.submit(handshake)
    assert door.refused == [(handshake.conn, 503) for handshake in waiting[64:]]
    door.may_open.set()
    resumed = {await door.resumed.get() for _ in range(CHECKED_AT_ONCE + 64)}
    assert resumed == set(range(CHECKED_AT_ONCE + 64))
    handshakes.submit(Authenticate(1_000, "demo", token, ""))
    assert await door.resumed.get() == 1_000
    await handshakes.stop()
