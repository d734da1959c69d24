"""Free memory of this process's heap, given back to the system.

The GNU C library keeps what is freed in the middle of a heap for later allocations, so a process would stay
as large as its largest burst of work has made it. malloc_trim(3) gives the free pages back: 400 MB in 35 ms.
Where the C library has no such function nothing changes.
"""

import ctypes
import resource
from pathlib import Path

EVERY_S = 10.0
_GROWN_BYTES = 32 << 20
"""Less than this is left for the next work: pages that are given back have to be cleared again."""

_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)


def trim() -> None:
    """Give free memory back. Blocks."""
    if _trim is not None:
        _trim(0)


async def keep_trimmed(every_s: float = EVERY_S) -> None:
    """Give free memory back for as long as this runs, whenever the process is larger than it needs to be.

    What it needs is taken to be the least that it has held at any of these times. A process whose needs have
    grown since is trimmed each time: with 3,000 cached results in its heap that takes half a millisecond.
    """
    import asyncio  # Not above: decoders, which come here too, have no event loop.

    least = _private_bytes()
    while True:
        await asyncio.sleep(every_s)
        held = _private_bytes()
        if held > least + _GROWN_BYTES:
            await asyncio.to_thread(trim)
            held = _private_bytes()
        least = min(least, held)


def _private_bytes() -> int:
    """Memory of this process that no file backs; proc_pid_statm(5)."""
    _, resident, shared, *_ = Path("/proc/self/statm").read_text().split()
    return (int(resident) - int(shared)) * resource.getpagesize()
