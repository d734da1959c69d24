"""A bounded number of concurrent users, with a fair queue.

Accounts take turns, and within an account addresses do: however much one of them asks for, another one waits
for one piece of work of each at most. They belong to one event loop.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from broker.concurrency.shares import Asker, Shares

_Line = deque[asyncio.Future[None]]


class Turns:
    """Places, and who waits for one."""

    def __init__(self, places: int, waiting: Shares) -> None:
        """All places are free.

        Args:
            waiting: who may wait; other places may share it.
        """
        self._free = places
        self._waiting = waiting
        self._accounts: OrderedDict[str, OrderedDict[str, _Line]] = OrderedDict()

    @asynccontextmanager
    async def held(
        self, asker: Asker, *, is_counted: bool = True, wait_s: float | None = None
    ) -> AsyncIterator[None]:
        """Have a place. Safe to cancel.

        Args:
            is_counted: whether it counts among those that may wait; without, something else bounds them.
            wait_s: for a place at most; None is for ever.

        Raises:
            Unavailable: too many wait, or no place came in time.
        """
        if self._free:
            self._free -= 1
        elif is_counted:
            with self._waiting.held(asker):
                await self._wait(asker, wait_s)
        else:
            await self._wait(asker, wait_s)
        try:
            yield
        finally:
            self._leave()

    async def _wait(self, asker: Asker, wait_s: float | None) -> None:
        called = asyncio.get_running_loop().create_future()
        lines = self._accounts.setdefault(asker.account, OrderedDict())
        lines.setdefault(asker.address, deque()).append(called)
        try:
            async with asyncio.timeout(wait_s):
                await called
        except (asyncio.CancelledError, TimeoutError) as error:
            if called.done() and not called.cancelled():
                self._leave()
            if isinstance(error, TimeoutError):
                raise self._waiting.refusal() from None
            raise

    def _leave(self) -> None:
        called = self._next()
        if called is None:
            self._free += 1
        else:
            called.set_result(None)

    def _next(self) -> "asyncio.Future[None] | None":
        """Whose turn it is; its account and address go behind the others."""
        while self._accounts:
            account, lines = next(iter(self._accounts.items()))
            address, line = next(iter(lines.items()))
            called = line.popleft()
            lines.move_to_end(address)
            self._accounts.move_to_end(account)
            if not line:
                del lines[address]
            if not lines:
                del self._accounts[account]
            if not called.done():
                return called
        return None


class TurnsByKey:
    """As many places for each key. A key that nobody uses is forgotten."""

    def __init__(self, places: int, waiting: Shares) -> None:
        self._places = places
        self._waiting = waiting
        self._turns: dict[str, tuple[Turns, int]] = {}

    def __contains__(self, key: str) -> bool:
        """Whether anybody has a place of `key`, or waits for one."""
        return key in self._turns

    @asynccontextmanager
    async def held(self, key: str, asker: Asker) -> AsyncIterator[None]:
        """Have a place of `key`. Safe to cancel. Raises Unavailable where too many wait."""
        turns, users = self._turns.get(key) or (Turns(self._places, self._waiting), 0)
        self._turns[key] = turns, users + 1
        try:
            async with turns.held(asker):
                yield
        finally:
            self._forget(key)

    def _forget(self, key: str) -> None:
        turns, users = self._turns[key]
        if users > 1:
            self._turns[key] = turns, users - 1
        else:
            del self._turns[key]
