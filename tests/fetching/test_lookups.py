"""Names are looked up beside everything else, and nobody takes all the threads for it."""

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from broker.concurrency.shares import Asker
from broker.fetching.errors import UpstreamTimeout
from broker.fetching.fetcher import FetchConfig, Fetcher, FetchRequest
from broker.fetching.lookups import Lookups
from broker.fetching.urls import AllowList
from tests.fetching.upstream import Upstream, open_upstream, reply

pytestmark = pytest.mark.anyio

THREADS = 64


class Silence:
    """A resolver that knows one name; for others it waits until the end."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.waiting: list[str] = []

    def find(self, host: str, port: int, **_: object) -> list[Any]:
        if host == "known.test":
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]
        self.waiting.append(host)
        self.over.wait(60)
        raise socket.gaierror(socket.EAI_AGAIN, "nobody answers")


@pytest.fixture
def silence(monkeypatch: pytest.MonkeyPatch) -> Iterator[Silence]:
    silence = Silence()
    monkeypatch.setattr(socket, "getaddrinfo", silence.find)
    yield silence
    silence.over.set()


@asynccontextmanager
async def looking(lookups: Lookups, count: int) -> AsyncIterator[list[Any]]:
    tasks = [asyncio.ensure_future(lookups.resolve(f"{number}.invalid", 80)) for number in range(count)]
    ended: list[Any] = []
    try:
        yield ended
    finally:
        ended += await asyncio.gather(*tasks, return_exceptions=True)
        lookups.close()


async def until_waiting(silence: Silence, count: int) -> None:
    async with asyncio.timeout(20):
        while len(silence.waiting) < count:  # noqa: ASYNC110 - by threads
            await asyncio.sleep(0.01)


async def test_names_that_nobody_answers_hold_up_no_reading_of_files(silence: Silence) -> None:
    more_than_threads = min(32, (os.cpu_count() or 1) + 4) + 4  # of a loop, as asyncio makes them
    async with looking(Lookups(), more_than_threads) as ended:
        await until_waiting(silence, 1)
        async with asyncio.timeout(20):
            assert await asyncio.to_thread(lambda: "read") == "read"
        silence.over.set()
    assert [each for each in ended if not isinstance(each, socket.gaierror)] == []


async def fetch(fetcher: Fetcher, url: str, asker: Asker, total_s: float) -> int:
    return (await fetcher.fetch(FetchRequest(url, total_s, 1_000, asker=asker))).status


@asynccontextmanager
async def upstream_and_fetcher() -> AsyncIterator[tuple[Upstream, Fetcher]]:
    async with open_upstream(reply()) as upstream:
        allow = AllowList([f"known.test:{upstream.port}"])
        async with Fetcher(FetchConfig(allow, connections=2 * THREADS)) as fetcher:
            yield upstream, fetcher


@pytest.mark.parametrize(
    ("silent", "neighbour", "most"),
    [
        (Asker("demo", "127.0.0.1"), Asker("demo", "127.0.0.2"), THREADS // 3),
        (Asker("demo"), Asker("other", "127.0.0.2"), THREADS // 2),
    ],
    ids=["address", "account"],
)
async def test_silent_names_of_one_leave_a_neighbour_its_look_ups(
    silence: Silence, silent: Asker, neighbour: Asker, most: int
) -> None:
    """One asks for twice as many names as there are threads, and has given up on all of them."""
    async with upstream_and_fetcher() as (upstream, fetcher):
        asked = await asyncio.gather(
            *(fetch(fetcher, f"http://{n}.invalid/", silent, 0.5) for n in range(2 * THREADS)),
            return_exceptions=True,
        )
        assert [each for each in asked if not isinstance(each, UpstreamTimeout)] == []
        assert len(silence.waiting) == most
        # Its threads still wait, though it has gone.
        url = upstream.url(host="known.test")
        assert await fetch(fetcher, url, neighbour, 20) == 200


async def test_more_look_ups_of_one_wait_for_its_own(silence: Silence) -> None:
    async with upstream_and_fetcher() as (upstream, fetcher):
        asker = Asker("demo", "127.0.0.1")
        silent = asyncio.gather(
            *(fetch(fetcher, f"http://{n}.invalid/", asker, 20) for n in range(THREADS)),
            return_exceptions=True,
        )
        await until_waiting(silence, THREADS // 3)
        waiting = asyncio.ensure_future(fetch(fetcher, upstream.url(host="known.test"), asker, 20))
        silence.over.set()
        assert await waiting == 200
        await silent
    assert len(silence.waiting) == THREADS
