"""`broker.analytics.matomo.OpenReport`: whose time is counted."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from broker.analytics.errors import MatomoError
from broker.analytics.matomo import AHEAD_BYTES, Matomo, MatomoConfig, Request

pytestmark = pytest.mark.anyio

PART = b"[" + b" " * AHEAD_BYTES


class Slow(httpx.AsyncByteStream):
    """A reply in three parts with a pause before each but the first."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield PART
        for part in (b" ", b"]"):
            await asyncio.sleep(self._pause_s)
            yield part


async def read(*, matomo_s: float, reader_s: float) -> bytes:
    """A report of a Matomo that may take a second."""

    async def answer(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"Content-Type": "application/json"}, stream=Slow(matomo_s))

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        matomo = Matomo(http, "http://matomo.test", "token", MatomoConfig(timeout_s=1.0))
        report = await matomo.open_report(Request("VisitsSummary.get", {}), 2 * AHEAD_BYTES)
        try:
            content = report.beginning
            async for part in report.rest():
                await asyncio.sleep(reader_s)
                content += part
            return content
        finally:
            await report.close()


async def test_the_time_of_the_reader_is_not_matomos() -> None:
    assert await read(matomo_s=0.0, reader_s=0.7) == PART + b" ]"


async def test_pauses_of_matomo_add_up() -> None:
    with pytest.raises(MatomoError, match="in time"):
        await read(matomo_s=0.7, reader_s=0.0)
