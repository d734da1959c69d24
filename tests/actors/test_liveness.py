"""What is done to a process that does not answer, on real processes."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from broker.actors.link import LinkLost
from broker.actors.liveness import Pace, watch_process, watch_slot

pytestmark = pytest.mark.anyio

REST = "import time; print(flush=True); time.sleep(600)"
WORK = "print(flush=True)\nwhile True: pass"


class Silent:
    """A link to a process that answers once, and tells when it was asked so many times."""

    def __init__(self, pid: int, asked: int = 0) -> None:
        self.enough = asyncio.Event()
        self._pid = pid
        self._left = asked
        self._is_first = True

    async def call(self, method: str, *arguments: object, timeout_s: float) -> int:
        assert (method, arguments) == ("process_id", ())
        if self._is_first:
            self._is_first = False
            return self._pid
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.Event().wait()
        except TimeoutError as error:
            self._left -= 1
            if self._left == 0:
                self.enough.set()
            raise LinkLost(method) from error
        raise AssertionError("nothing sets that event")

    def close(self) -> None:
        """Nothing is held."""


@pytest.fixture
def process(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", request.param], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


@pytest.mark.parametrize("process", [REST], indirect=True)
async def test_a_stopped_process_is_killed(process: "subprocess.Popen[bytes]") -> None:
    os.kill(process.pid, signal.SIGSTOP)
    watch = asyncio.create_task(watch_slot("owner", 0, Silent(process.pid)))
    assert await asyncio.to_thread(process.wait, 60) == -signal.SIGKILL
    watch.cancel()
    with suppress(asyncio.CancelledError):
        await watch


@pytest.mark.parametrize("process", [WORK], indirect=True)
async def test_a_busy_process_is_left_alone(process: "subprocess.Popen[bytes]") -> None:
    link = Silent(process.pid, asked=8)  # 2 s
    watch = asyncio.create_task(watch_slot("owner", 0, link))
    await link.enough.wait()
    watch.cancel()
    with suppress(asyncio.CancelledError):
        await watch
    assert process.poll() is None


class Stopped:
    """A link to a process whose watcher is stopped with it for a while; it answers before and after."""

    def __init__(self, pid: int, stopped_s: float) -> None:
        self.goes_on = asyncio.Event()
        self._pid = pid
        self._silences_s = [0.0, 0.0, stopped_s]

    async def call(self, _method: str, *_arguments: object, timeout_s: float) -> int:
        if len(self._silences_s) == 3:
            self._silences_s.pop(0)
            return self._pid
        if not self._silences_s:
            self.goes_on.set()
            return self._pid
        time.sleep(self._silences_s.pop(0))  # noqa: ASYNC251 - nothing of the watcher runs
        raise LinkLost("process_id") from TimeoutError()

    def close(self) -> None:
        """Nothing is held."""


@pytest.mark.parametrize("process", [REST], indirect=True)
async def test_time_in_which_the_watcher_stood_still_counts_for_nothing(
    process: "subprocess.Popen[bytes]",
) -> None:
    link = Stopped(process.pid, stopped_s=2.5)
    pace = Pace(pause_s=0.01, answer_s=0.1, idle_s=2.0)
    watch = asyncio.create_task(watch_process("gateway", link, pace, lambda: None))
    await link.goes_on.wait()
    watch.cancel()
    with suppress(asyncio.CancelledError):
        await watch
    assert process.poll() is None
