"""Kills a process on this machine that is stopped or blocked.

Ray sees that a process has ended, and not that it does not answer.

A process that does not answer may be busy, or have to wait for a processor as everything else on a busy
machine. Linux counts both for each of its threads (proc_pid_schedstat: time on a processor, time waiting for
one). What is left of its silence is time in which it did nothing although it could. When that is too long it
is killed, and Ray starts another. One that is busy without end is exchanged by the pool, later.

A watcher that was itself stopped, with the whole machine or alone, knows nothing about that time: of each
question it counts a second at most.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from broker.actors.link import Link, LinkLost, SlotLink
from broker.actors.placement import slot_name
from broker.metrics.counts import SLOT_EXCHANGES
from broker.rpc.calls import SLOT_CALLS

_ROUND_S = 1.0  # of a question counts: longer than any takes, unless the watcher was stopped

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pace:
    """How a process is watched, in seconds.

    Attributes:
        pause_s: between two questions.
        answer_s: for an answer; less than `idle_s`, so that there are several questions.
        idle_s: in which it could have run but did not, until it is killed.
    """

    pause_s: float
    answer_s: float
    idle_s: float


_SLOT = Pace(pause_s=0.5, answer_s=0.25, idle_s=0.7)


@dataclass(slots=True)
class _Process:
    """The one that has answered last.

    Attributes:
        descriptor: of the process, not of one that has its number later.
        asked_s: when it was last missed, None as long as it answers.
        silent_s: how long it has been silent since it was first missed.
        busy_s: how busy it had been until then. Not read while it answers: that is a file for each thread.
    """

    pid: int
    descriptor: int
    asked_s: float | None = None
    silent_s: float = 0.0
    busy_s: float = 0.0


async def watch_slot(kind: str, index: int, link: Link | None = None) -> None:
    """Watch over the process of a slot, until cancelled; it must be on this machine."""
    slot = slot_name(kind, index)
    link = link or SlotLink(kind, index, SLOT_CALLS)
    SLOT_EXCHANGES.add(slot, amount=0)
    await watch_process(slot, link, _SLOT, lambda: SLOT_EXCHANGES.add(slot))


async def watch_process(name: str, link: Link, pace: Pace, note_killed: Callable[[], None]) -> None:
    """Watch over the process behind `link`, until cancelled; it must be on this machine.

    Args:
        name: of the process in the log.
        link: answers `process_id`; raises `LinkLost` from a `TimeoutError` when the process is silent, from
            anything else when it does not answer or cannot be found. Is closed at the end.
        pace: how often it is asked, and when it is killed.
        note_killed: is called at each kill.
    """
    last: _Process | None = None
    try:
        while True:
            try:
                pid = await link.call("process_id", timeout_s=pace.answer_s)
            except LinkLost as lost:
                is_silent = isinstance(lost.__cause__, TimeoutError)
                if last is not None and is_silent and _idle_s(last) >= pace.idle_s:
                    with suppress(ProcessLookupError):  # it has ended, and another has not started yet
                        signal.pidfd_send_signal(last.descriptor, signal.SIGKILL)
                        note_killed()
                        _log.warning("process_hangs", extra={"hung": name, "hung_pid": last.pid})
                    _forget(last)
                    last = None
                if last is None or not is_silent:
                    await asyncio.sleep(pace.pause_s)
            else:
                last = _answered(last, pid)
                await asyncio.sleep(pace.pause_s)
    finally:
        _forget(last)
        link.close()


def _answered(last: _Process | None, pid: int) -> _Process | None:
    if last is not None and last.pid == pid:
        last.asked_s = None
        return last
    _forget(last)
    try:
        return _Process(pid, os.pidfd_open(pid))
    except OSError:  # it has ended since
        return None


def _forget(last: _Process | None) -> None:
    if last is not None:
        os.close(last.descriptor)


def _idle_s(last: _Process) -> float:
    """How long it has done nothing since it was first missed."""
    now_s = asyncio.get_running_loop().time()
    if last.asked_s is None:
        last.asked_s, last.silent_s, last.busy_s = now_s, 0.0, _busy_s(last.pid)
        return 0.0
    last.silent_s += min(now_s - last.asked_s, _ROUND_S)
    last.asked_s = now_s
    # Threads that have ended meanwhile took their time with them.
    return last.silent_s - max(0.0, _busy_s(last.pid) - last.busy_s)


def _busy_s(pid: int) -> float:
    """How long its threads were on a processor, or waited for one, in all; 0 when it has ended."""
    total_ns = 0
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            on_ns, waiting_ns, _ = (thread / "schedstat").read_text().split()
            total_ns += int(on_ns) + int(waiting_ns)
    return total_ns / 1e9
