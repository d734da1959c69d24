"""Kills the process of a slot on this machine that is stopped or blocked.

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

from broker.actors.link import Link, LinkLost, SlotLink
from broker.actors.placement import slot_name
from broker.metrics.counts import SLOT_EXCHANGES
from broker.rpc.calls import SLOT_CALLS

_PAUSE_S = 0.5  # between two questions
_ANSWER_S = 0.25  # less than the silence that is too long, so that there are several
_IDLE_S = 0.7

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Process:
    """The one that has answered last.

    Attributes:
        descriptor: of the process, not of one that has its number later.
        silent_since_s: when it was first missed since then, None as long as it answers.
        busy_s: how busy it had been until then. Not read while it answers: that is a file for each thread.
    """

    pid: int
    descriptor: int
    silent_since_s: float | None = None
    busy_s: float = 0.0


async def watch_pulse(kind: str, index: int, link: Link | None = None) -> None:
    """Watch over the process of a slot, until cancelled; it must be on this machine."""
    link = link or SlotLink(kind, index, SLOT_CALLS)
    SLOT_EXCHANGES.add(slot_name(kind, index), amount=0)
    last: _Process | None = None
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
                last = _answered(last, pid)
                await asyncio.sleep(_PAUSE_S)
                continue
            if last is None:
                await asyncio.sleep(_PAUSE_S)
    finally:
        _forget(last)
        link.close()


def _answered(last: _Process | None, pid: int) -> _Process | None:
    if last is not None and last.pid == pid:
        last.silent_since_s = None
        return last
    _forget(last)
    try:
        return _Process(pid, os.pidfd_open(pid))
    except OSError:  # it has ended since
        return None


def _forget(last: _Process | None) -> None:
    if last is not None:
        os.close(last.descriptor)


def _does_nothing(last: _Process) -> bool:
    """Whether it has been idle for too long since it was first missed."""
    now_s = asyncio.get_running_loop().time()
    if last.silent_since_s is None:
        last.silent_since_s, last.busy_s = now_s, _busy_s(last.pid)
        return False
    return now_s - last.silent_since_s - (_busy_s(last.pid) - last.busy_s) >= _IDLE_S


def _busy_s(pid: int) -> float:
    """How long its threads were on a processor, or waited for one, in all; 0 when it has ended."""
    total_ns = 0
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            on_ns, waiting_ns, _ = (thread / "schedstat").read_text().split()
            total_ns += int(on_ns) + int(waiting_ns)
    return total_ns / 1e9
