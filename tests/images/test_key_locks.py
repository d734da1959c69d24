"""One at a time for a key, over processes."""

import asyncio
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import psutil

from broker.images.key_locks import KeyLocks

HOLDER = """
import asyncio, sys
from pathlib import Path
from broker.images.key_locks import KeyLocks

async def hold():
    async with KeyLocks(Path(sys.argv[1])).held("key"):
        print("held", flush=True)
        await asyncio.sleep(600)

asyncio.run(hold())
"""


def test_a_key_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    async def go() -> None:
        running = most = 0

        async def hold(locks: KeyLocks) -> None:
            nonlocal running, most
            async with locks.held("key"):
                running += 1
                most = max(most, running)
                await asyncio.sleep(0)
                running -= 1

        await asyncio.gather(*(hold(KeyLocks(tmp_path)) for _ in range(8)))
        assert most == 1

    asyncio.run(go())


def test_who_gives_up_waiting_leaves_nothing_held(tmp_path: Path) -> None:
    async def go() -> None:
        locks = KeyLocks(tmp_path)
        before = psutil.Process().num_fds()
        async with locks.held("key"):
            waiting = asyncio.create_task(locks.held("key").__aenter__())
            await asyncio.sleep(0.05)
            assert not waiting.done()
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        async with asyncio.timeout(10), locks.held("key"):
            pass
        assert psutil.Process().num_fds() == before

    asyncio.run(go())


def test_who_holds_many_keys_holds_up_nobody_with_another(tmp_path: Path) -> None:
    """Keys shared a thousand files, and whoever waited with twenty of them held up one in fifty others."""

    async def go() -> None:
        locks = KeyLocks(tmp_path)
        async with AsyncExitStack() as held:
            for number in range(200):
                await held.enter_async_context(locks.held(f"held {number}"))
            async with asyncio.timeout(30):
                for number in range(200):
                    async with locks.held(f"free {number}"):
                        pass

    asyncio.run(go())


def test_a_process_that_is_killed_gives_up_its_locks(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"

        async def wait() -> None:
            entering = asyncio.create_task(KeyLocks(tmp_path).held("key").__aenter__())
            await asyncio.sleep(0.1)
            assert not entering.done()
            holder.send_signal(signal.SIGKILL)
            await asyncio.wait_for(entering, 30)

        asyncio.run(wait())


def test_a_broken_directory_stops_nobody(tmp_path: Path) -> None:
    async def go() -> None:
        locks = KeyLocks(tmp_path / "locks")
        (tmp_path / "locks").rmdir()
        async with locks.held("key"), locks.held("key"):
            pass

    asyncio.run(go())
