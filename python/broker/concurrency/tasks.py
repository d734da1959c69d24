"""Long-lived tasks: the one way to run work that lasts as long as its process.

A task that ends with an exception is noticed by nobody: what it did is not done any more, and nothing else
looks wrong. `keep_running` therefore starts such work again whenever it ends, at once for the first time and
then after pauses that double. Each end is logged and counted. Work that goes on ending is *failing*, which
`/readyz` tells; it fails no more once it has held for `HEALTHY_S`.

What holds a slot is different: an owner or a counter that cannot write must not go on. Its tasks are watched
by its `ended`, and the process ends with them.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from broker.concurrency.back_off import Backoff, Delays
from broker.metrics.counts import TASK_RESTARTS

HEALTHY_S = 10.0
"""Work that has held for so long does not count as failing."""

_RESTART = Backoff(0.1, 5.0, jitter=0)  # after the second end in a row; the first costs no time

_log = logging.getLogger(__name__)
_ended_s: dict[asyncio.Task[None], float] = {}  # of those that run: when their work ended last


def keep_running(name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
    """Run `work` until the task is cancelled, however often it ends. Whoever calls this owns the task.

    Args:
        name: what kind of work it is, for logs, metrics and `/readyz`; one of ours, never a caller's text.
        work: makes the coroutine, again each time; it must cope with what the one before left behind.
    """
    task = asyncio.create_task(_run(name, work), name=name)
    task.add_done_callback(lambda done: _ended_s.pop(done, None))
    return task


def run_once(name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Run work that nobody awaits, and log what it fails with. Whoever calls this owns the task."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_log_failure)
    return task


async def cancel_and_wait(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancel tasks and return when they have ended, whatever with. None is a task that was not begun."""
    begun = [task for task in tasks if task is not None]
    for task in begun:
        task.cancel()
    await asyncio.gather(*begun, return_exceptions=True)


async def is_set_within(event: asyncio.Event, wait_s: float) -> bool:
    """Whether an event is set by then; waits until it is, or for `wait_s` seconds. Safe to cancel."""
    try:
        # Not wait_for, which can lose a cancellation in Python 3.11.
        async with asyncio.timeout(wait_s):
            return await event.wait()
    except TimeoutError:
        return False


def failing() -> list[str]:
    """The names of this process' tasks whose work ended a moment ago, sorted."""
    recent_s = time.monotonic() - HEALTHY_S
    return sorted({task.get_name() for task, ended_s in _ended_s.items() if ended_s > recent_s})


async def _run(name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    task = asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"
    TASK_RESTARTS.add(name, amount=0)  # so that the first one is an increase
    delays, ends = Delays(_RESTART), 0
    while True:
        began_s = time.monotonic()
        try:
            await work()
            _log.error("task_ended", extra={"task": name})
        except Exception:
            _log.exception("task_ended", extra={"task": name})
        TASK_RESTARTS.add(name)
        now_s = time.monotonic()
        _ended_s[task] = now_s
        if now_s - began_s >= HEALTHY_S:
            ends = 0
            delays.reset()
        await asyncio.sleep(delays.next_s() if ends else 0)
        ends += 1


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("task_failed", extra={"task": task.get_name()}, exc_info=error)
