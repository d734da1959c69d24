"""Time-outs of requests, and of waits for parts of their bodies.

A timer for each would cost as much as checking a token. So one look every half second is shared by all: with
one limit they end in the order in which they began, and only the oldest need be looked at.
"""

import asyncio

from broker.clock import Clock

_LOOK_S = 0.5


class Deadlines:
    """Tasks that may each run for so long. Belongs to one event loop."""

    def __init__(self, limit_s: float, clock: Clock) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._began_s: dict[asyncio.Task[object], float] = {}
        self._late: set[asyncio.Task[object]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # once it is known

    def begin(self) -> asyncio.Task[object]:
        """Let the current task run for the limit and then, within half a second, be cancelled."""
        task = asyncio.current_task(self._loop)
        assert task is not None, "what can be cancelled is a task"
        self._began_s[task] = self._clock.monotonic_s()
        if self._timer is None:
            self._loop = asyncio.get_running_loop()
            self._timer = self._loop.call_later(_LOOK_S, self._look)
        return task

    def end(self, task: asyncio.Task[object]) -> None:
        """Stop watching the task."""
        self._began_s.pop(task, None)
        self._late.discard(task)

    def is_late(self, task: asyncio.Task[object]) -> bool:
        """Whether it was cancelled by this, and by nobody else; then it goes on as if it were not."""
        return task in self._late and task.uncancel() == 0

    def _look(self) -> None:
        self._timer = None
        over_s = self._clock.monotonic_s() - self._limit_s
        for task, began_s in self._began_s.items():
            if began_s > over_s:
                break
            if task not in self._late:
                self._late.add(task)
                task.cancel()
        if self._began_s:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)
