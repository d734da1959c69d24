"""`broker.heap`: that a process gets smaller again."""

import subprocess
import sys

import pytest

from broker import heap

pytestmark = pytest.mark.skipif(heap._trim is None, reason="this C library cannot give memory back")

_BURST = """
import asyncio, time
from broker import heap

def burst():
    work = [b"x" * 100_000 for _ in range(2_000)]
    return work[-1]  # behind all the others

async def main():
    trimming = asyncio.create_task(heap.keep_trimmed(0.05))
    await asyncio.sleep(0)
    before = heap._private_bytes()
    rest = burst()
    print((heap._private_bytes() - before) >> 20)
    until = time.monotonic() + 30
    while heap._private_bytes() > before + (64 << 20) and time.monotonic() < until:
        await asyncio.sleep(0.01)
    print((heap._private_bytes() - before) >> 20)

asyncio.run(main())
"""


def test_what_a_burst_needed_is_given_back() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _BURST], check=True, capture_output=True, text=True, timeout=60
    )
    kept_mb, left_mb = map(int, done.stdout.split())
    assert kept_mb > 150  # what malloc keeps of 200 MB by itself
    assert left_mb < 64
