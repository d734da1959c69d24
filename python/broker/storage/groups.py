"""Many calls by one query: reads, or writes that commit together.

While one query runs, calls that arrive wait and go with the next one. Nothing is delayed on purpose: a call
that finds nothing running starts a query at once. The query of a call always begins after the call, so a read
sees whatever was acknowledged before it was asked for, by whichever process.

Under load this is what makes a read cheap: the way to the database and back costs a process ten times as much
as the row.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Generic, TypeVar

from broker.errors import BrokerError, Unavailable

K = TypeVar("K")
V = TypeVar("V")

_WAITING = 20_000  # calls; over it `Unavailable` at once


class Groups(Generic[K, V]):
    """Calls by key. Belongs to one event loop; `Database.groups` makes one, and closes it."""

    def __init__(self, work: Callable[[Sequence[K]], Awaitable[Mapping[K, V]]], most: int) -> None:
        """Gather calls for `work`.

        Args:
            work: does what is asked for the keys of a group, all or nothing, each key once, in the order of
                their first calls; a key that it leaves out is answered None.
            most: keys of one group.
        """
        self._work = work
        self._most = most
        self._waiting: dict[K, list[asyncio.Future[V | None]]] = {}
        self._calls = 0
        self._closed = False
        self._task: asyncio.Task[None] | None = None

    async def ask(self, key: K) -> V | None:
        """What `work` says of `key`; equal keys of one group share it. Cancelling it takes nothing back.

        Raises:
            Unavailable: too many wait, or the groups have been closed. What `work` raises is passed on.
        """
        if self._closed or self._calls >= _WAITING:
            raise Unavailable("the database takes no more at present; try again", retry_after_s=1)
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
        """End the query that runs; who waits is answered `Unavailable`."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        group: dict[K, list[asyncio.Future[V | None]]] = {}
        try:
            while self._waiting:
                group = self._take()
                await self._answer(group)
                group = {}
        finally:
            self._task = None
            for answers in (*group.values(), *self._waiting.values()):
                _fail(answers, Unavailable("this process is going away; try again", retry_after_s=1))
            self._waiting = {}

    def _take(self) -> dict[K, list[asyncio.Future[V | None]]]:
        if len(self._waiting) <= self._most:
            group, self._waiting = self._waiting, {}
            return group
        keys = [key for key, _ in zip(self._waiting, range(self._most), strict=False)]
        return {key: self._waiting.pop(key) for key in keys}

    async def _answer(self, group: Mapping[K, list[asyncio.Future[V | None]]]) -> None:
        try:
            found = await self._work(list(group))
        except BrokerError as error:
            for answers in group.values():
                _fail(answers, error)
        except Exception as error:
            if len(group) == 1:
                for answers in group.values():
                    _fail(answers, error)
                return
            # One of them cannot be done; alone, it fails nobody else.
            for key, answers in group.items():
                await self._answer({key: answers})
        else:
            for key, answers in group.items():
                for answer in answers:
                    if not answer.done():
                        answer.set_result(found.get(key))


def _fail(answers: Sequence["asyncio.Future[V | None]"], error: Exception) -> None:
    for answer in answers:
        if not answer.done():
            answer.set_exception(error)
