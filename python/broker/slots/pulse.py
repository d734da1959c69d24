"""Ends the process of a slot that is stopped or blocked, on this machine.

Ray sees that a process has ended, and not that it does not answer.

A process that does not answer may be busy, or have to wait for a processor as everything else on a busy
machine. Linux counts both for each of its threads (proc_pid_schedstat: time on a processor, time waiting for
one). What is left of its silence is time in which it did nothing although it could. When that is too long it
is killed, and Ray starts another. One that is busy without end is exchanged by the pool, later.
"""

import asyncio
import logging
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from broker.metrics.counts import SLOT_EXCHANGES
from broker.slots.calls import SLOT_CALLS
from broker.slots.link import Link, LinkLost, SlotLink
from broker.slots.placement import slot_name

_PAUSE_S = 0.4  # between two questions
_ANSWER_S = 0.4  # less than the silence that is too long, so that there are several
_IDLE_S = 1.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Answered:
    """The process that has answered last: its number, a descriptor of it, when, and how busy it had been."""

    pid: int
    descriptor: int
    at_s: float
    busy_s: float


async def watch_pulse(kind: str, index: int, link: Link | None = None) -> None:
    """Watch over the process of a slot, until cancelled; it must be on this machine."""
    link = link or SlotLink(kind, index, SLOT_CALLS)
    last: _Answered | None = None
    try:
        while True:
            try:
                pid = await link.call("process_id", timeout_s=_ANSWER_S)
            except LinkLost as lost:
                if last is not None and isinstance(lost.__cause__, TimeoutError) and _does_nothing(last):
                    SLOT_EXCHANGES.add(slot_name(kind, index))
                    _log.warning("slot_hangs", extra={"slot": slot_name(kind, index), "hung_pid": last.pid})
                    with suppress(ProcessLookupError):
                        signal.pidfd_send_signal(last.descriptor, signal.SIGKILL)
                    _forget(last)
                    last = None
            else:
                last = _note(last, pid)
                await asyncio.sleep(_PAUSE_S)
                continue
            if last is None:
                await asyncio.sleep(_PAUSE_S)
    finally:
        _forget(last)
        link.close()


def _note(last: _Answered | None, pid: int) -> _Answered | None:
    now_s = asyncio.get_running_loop().time()
    if last is None or last.pid != pid:
        _forget(last)
        try:
            return _Answered(pid, os.pidfd_open(pid), now_s, _busy_s(pid))
        except OSError:  # it has ended since
            return None
    return _Answered(pid, last.descriptor, now_s, _busy_s(pid))


def _forget(last: _Answered | None) -> None:
    if last is not None:
        os.close(last.descriptor)


def _does_nothing(last: _Answered) -> bool:
    """Whether it has been idle for too long since its last answer."""
    silent_s = asyncio.get_running_loop().time() - last.at_s
    return silent_s - (_busy_s(last.pid) - last.busy_s) >= _IDLE_S


def _busy_s(pid: int) -> float:
    """How long its threads were on a processor, or waited for one, in all; 0 when it has ended."""
    total_ns = 0
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            on_ns, waiting_ns, _ = (thread / "schedstat").read_text().split()
            total_ns += int(on_ns) + int(waiting_ns)
    return total_ns / 1e9
