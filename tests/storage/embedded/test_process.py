"""Waiting for the end of a process that may be nobody's child."""

import asyncio
import os
import subprocess
from collections.abc import Iterator

import pytest

from broker.storage.embedded.process import wait_for_end

pytestmark = pytest.mark.anyio

NEVER_S = 60.0


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux tells of the end of a process")
async def test_the_end_of_a_process_is_told(sleeper: "subprocess.Popen[bytes]") -> None:
    waiting = asyncio.create_task(wait_for_end(sleeper.pid, NEVER_S, NEVER_S))
    await asyncio.sleep(0)
    sleeper.kill()
    async with asyncio.timeout(NEVER_S / 2):
        await waiting


async def test_the_wait_for_a_living_process_has_a_limit(sleeper: "subprocess.Popen[bytes]") -> None:
    async with asyncio.timeout(NEVER_S / 2):
        await wait_for_end(sleeper.pid, 0.01, 0.01)
    assert sleeper.poll() is None


async def test_a_process_that_is_gone_is_not_waited_for_long(sleeper: "subprocess.Popen[bytes]") -> None:
    sleeper.kill()
    sleeper.wait()
    async with asyncio.timeout(NEVER_S / 2):
        await wait_for_end(sleeper.pid, NEVER_S, 0.01)
