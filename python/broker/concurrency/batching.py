"""Many calls in one query: reads, or writes that commit together.

While one query runs, calls that arrive wait and go with the next one. Nothing is delayed on purpose: a call
that finds nothing running starts a query at once. The query of a call always begins after the call, so a read
sees whatever was acknowledged before it was asked for, by whichever process.

Under load this is what makes a read cheap: the way to the database and back costs a process ten times as much
as the row.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeAlias, TypeVar

from broker.concurrency.tasks import cancel_and_wait
from broker.errors import BrokerError, OutcomeUnknown, Unavailable

K = TypeVar("K")
V = TypeVar("V")

_WAITING = 20_000  # calls; over it `Unavailable` at once
# To lend a connection costs as much as a query, so groups that follow each other share it; not for ever,
# since others want one too.
_GROUPS_A_LOAN = 16

_Group: TypeAlias = dict[K, list[asyncio.Future[V | None]]]


class Batcher(Generic[K, V]):
    """Calls by key. Belongs to one event loop; `Database.batcher` makes one, and closes it."""

    def __init__(
        self,
        work: Callable[[Any, Sequence[K]], Awaitable[Mapping[K, V]]],
        most: int,
        lend: Callable[[], AbstractAsyncContextManager[Any]],
        *,
        writes: bool = False,
    ) -> None:
        """Gather calls for `work`.

        Args:
            work: does on a connection what is asked for the keys of a group, all or nothing, each key once,
                in the order of their first calls; a key that it leaves out is answered None.
            most: keys of one group.
            lend: a connection, for a while.
            writes: `work` changes something, so that one that is broken off may have been done.
        """
        self._work = work
        self._most = most
        self._lend = lend
        self._broken_off = OutcomeUnknown if writes else Unavailable
        self._waiting: _Group[K, V] = {}
        self._calls = 0
        self._closed = False
        self._task: asyncio.Task[None] | None = None

    async def ask(self, key: K) -> V | None:
        """What `work` says of `key`; equal keys of one group share it. Cancelling it takes nothing back.

        Raises:
            Unavailable: too many wait, or the groups have been closed. What `work` raises is passed on.
            OutcomeUnknown: the groups have been closed while `work` changed something.
        """
        if self._closed or self._calls >= _WAITING:
            raise Unavailable("the database is overloaded; try again", retry_after_s=1)
        answer: asyncio.Future[V | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(answer)
        self._calls += 1
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="groups")
        try:
            return await answer
        finally:
            self._calls -= 1

    async def close(self) -> None:
        """End the query that runs; who waits is answered `Unavailable`, or `OutcomeUnknown`."""
        self._closed = True
        await cancel_and_wait(self._task)

    async def _run(self) -> None:
        group: _Group[K, V] = {}
        try:
            while self._waiting:
                group = self._take()
                try:
                    async with self._lend() as connection:
                        left = _GROUPS_A_LOAN
                        while group:
                            _answer(group, await self._work(connection, list(group)))
                            left -= 1
                            group = self._take() if left else {}
                except BrokerError as error:
                    for answers in group.values():
                        _fail(answers, error)
                except Exception as error:
                    await self._work_apart(group, error)
        finally:
            self._task = None
            text = "this process is shutting down; try again"
            for answers in group.values():
                _fail(answers, self._broken_off(text, retry_after_s=1))
            for answers in self._waiting.values():
                _fail(answers, Unavailable(text, retry_after_s=1))
            self._waiting = {}

    def _take(self) -> _Group[K, V]:
        if len(self._waiting) <= self._most:
            group, self._waiting = self._waiting, {}
            return group
        keys = [key for key, _ in zip(self._waiting, range(self._most), strict=False)]
        return {key: self._waiting.pop(key) for key in keys}

    async def _work_apart(self, group: _Group[K, V], error: Exception) -> None:
        """One of them cannot be done; alone, it fails nobody else."""
        if len(group) == 1:
            for answers in group.values():
                _fail(answers, error)
            return
        for key, answers in group.items():
            try:
                async with self._lend() as connection:
                    _answer({key: answers}, await self._work(connection, [key]))
            except Exception as own_error:
                _fail(answers, own_error)


def _answer(group: _Group[K, V], found: Mapping[K, V]) -> None:
    for key, answers in group.items():
        for answer in answers:
            if not answer.done():
                answer.set_result(found.get(key))


def _fail(answers: Sequence["asyncio.Future[V | None]"], error: Exception) -> None:
    for answer in answers:
        if not answer.done():
            answer.set_exception(error)
