"""Names are looked up beside everything else."""

import asyncio
import os
import socket
import threading
from typing import Any

import pytest

from broker.fetching.network import resolve

pytestmark = pytest.mark.anyio


async def test_names_that_nobody_answers_hold_up_no_reading_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    is_over, begun = threading.Event(), threading.Event()

    def wait_in_vain(*_: object, **__: object) -> list[Any]:
        begun.set()
        is_over.wait(60)
        raise socket.gaierror(socket.EAI_AGAIN, "nobody answers")

    monkeypatch.setattr(socket, "getaddrinfo", wait_in_vain)
    more_than_threads = min(32, (os.cpu_count() or 1) + 4) + 4  # of a loop, as asyncio makes them
    lookups = [asyncio.ensure_future(resolve(f"{n}.invalid", 80)) for n in range(more_than_threads)]
    try:
        async with asyncio.timeout(20):
            while not begun.is_set():  # noqa: ASYNC110 - by a thread
                await asyncio.sleep(0.01)
            assert await asyncio.to_thread(lambda: "read") == "read"
    finally:
        is_over.set()
        ended = await asyncio.gather(*lookups, return_exceptions=True)
    assert [each for each in ended if not isinstance(each, socket.gaierror)] == []
