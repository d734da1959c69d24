"""The order of calls: those of one connection begin in order, different connections run concurrently.

A connection with unanswered calls has a *lane*. The call at its head runs, and the next one begins when the
head has finished. A call of the same method may begin earlier, when the head has reported by `ordered` that
the order of its effect is fixed. So events that are published one after the other share a commit, and a read
that was sent after a publish sees it. Lanes that can continue wait in one queue and take turns, so that a
connection with a thousand requests does not delay one with a single request. Empty lanes are removed.

Every amount is bounded, and requests beyond a bound are refused with an error that says to slow down. A
connection with too many waiting requests affects only itself. While the gateway as a whole has too many, it
still serves connections that have none in the queue.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from broker.concurrency.tasks import cancel_and_wait
from broker.errors import BrokerError, SlowDown, Unavailable
from broker.gateway.upcalls import OperationCall

_log = logging.getLogger(__name__)

_CLOSE_S = 1.0  # for what runs at the end; most calls take milliseconds

Run = Callable[[OperationCall, Callable[[], None]], Awaitable[None]]
"""Runs one call to its answer, also when cancelled; the second argument is `ordered`. It must not raise."""

Refuse = Callable[[OperationCall, BrokerError], None]
"""Answers a call that is not going to run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneLimits:
    """The bounds of `Lanes`; counts are calls, bytes are of methods and params."""

    running: int = 1_024
    running_per_connection: int = 256
    waiting_per_connection: int = 1_000
    waiting_bytes_per_connection: int = 8 << 20
    waiting: int = 50_000
    waiting_bytes: int = 64 << 20


@dataclass(slots=True)
class _Lane:
    waiting: deque[OperationCall] = field(default_factory=deque)
    waiting_bytes: int = 0
    running: int = 0
    method: str = ""  # of those that run
    head_is_unordered: bool = False
    is_ready: bool = False


class Lanes:
    """Owns the task of every running call. See the module's docstring."""

    def __init__(self, run: Run, refuse: Refuse, limits: LaneLimits | None = None) -> None:
        self._run = run
        self._refuse = refuse
        self._limits = limits or LaneLimits()
        self._lanes: dict[int, _Lane] = {}
        self._ready: deque[_Lane] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting = 0
        self._waiting_bytes = 0
        self._closed = False

    @property
    def running(self) -> int:
        """How many calls run now."""
        return len(self._tasks)

    @property
    def waiting(self) -> int:
        """How many calls have not begun."""
        return self._waiting

    def submit(self, call: OperationCall) -> None:
        """Let `call` run when its turn comes, or refuse it at once."""
        refusal = self._refusal(call)
        if refusal is not None:
            self._refuse(call, refusal)
            return
        lane = self._lanes.setdefault(call.conn, _Lane())
        lane.waiting.append(call)
        lane.waiting_bytes += call.size
        self._waiting += 1
        self._waiting_bytes += call.size
        self._offer(lane)
        self._begin()

    async def close(self) -> None:
        """Refuse what waits, give what runs a moment and cancel it, and return when every task has ended."""
        self._closed = True
        waiting = [call for lane in self._lanes.values() for call in lane.waiting]
        self._lanes.clear()
        self._ready.clear()
        for call in waiting:
            self._refuse(call, _closing())
        tasks = list(self._tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_S)
        await cancel_and_wait(*tasks)

    def _refusal(self, call: OperationCall) -> BrokerError | None:
        if self._closed:
            return _closing()
        limits, size = self._limits, call.size
        lane = self._lanes.get(call.conn)
        if lane is not None and lane.waiting:
            too_many = len(lane.waiting) >= limits.waiting_per_connection
            if too_many or lane.waiting_bytes + size > limits.waiting_bytes_per_connection:
                return SlowDown("too many requests of this connection are waiting", retry_after_s=1)
            if self._waiting >= limits.waiting or self._waiting_bytes + size > limits.waiting_bytes:
                return Unavailable("too many requests are waiting", retry_after_s=1)
        # Twice the bound: what is left for connections with nothing in the queue.
        if self._waiting >= 2 * limits.waiting or self._waiting_bytes + size > 2 * limits.waiting_bytes:
            return Unavailable("too many requests are waiting", retry_after_s=1)
        return None

    def _offer(self, lane: _Lane) -> None:
        if lane.is_ready or not lane.waiting:
            return
        can_join = (
            lane.waiting[0].method == lane.method
            and not lane.head_is_unordered
            and lane.running < self._limits.running_per_connection
        )
        if can_join or not lane.running:
            lane.is_ready = True
            self._ready.append(lane)

    def _begin(self) -> None:
        while self._ready and len(self._tasks) < self._limits.running:
            lane = self._ready.popleft()
            lane.is_ready = False
            call = lane.waiting.popleft()
            lane.waiting_bytes -= call.size
            self._waiting -= 1
            self._waiting_bytes -= call.size
            lane.running += 1
            lane.method = call.method
            lane.head_is_unordered = True
            task = asyncio.create_task(self._run_in(lane, call))
            self._tasks.add(task)

    async def _run_in(self, lane: _Lane, call: OperationCall) -> None:
        is_ordered = False

        def ordered() -> None:
            nonlocal is_ordered
            if is_ordered:
                return
            is_ordered = True
            lane.head_is_unordered = False
            self._offer(lane)
            self._begin()

        try:
            await self._run(call, ordered)
        except Exception:
            _log.exception("call_failed", extra={"operation": call.method})
        finally:
            lane.running -= 1
            task = asyncio.current_task()
            assert task is not None, "a coroutine runs in a task"
            self._tasks.discard(task)
            if not self._closed:
                ordered()
                self._offer(lane)
                self._begin()
                if not lane.waiting and not lane.running:
                    self._lanes.pop(call.conn, None)


def _closing() -> Unavailable:
    return Unavailable("this gateway is shutting down", retry_after_s=1)
