"""Calls to one slot: Ray places, restarts and finds its actor; calls go over a link of our own.

An actor call costs a millisecond of two processes, a call over the connection some tens of microseconds.

The connection to an actor whose node has lost its power does not end by itself. So while an actor is silent,
Ray is asked whether the slot has a newer one, and then the connection is given up at once. An actor that is
busy, and the slot's newest, keeps its connection.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeVar

from ray.exceptions import RayError

from broker.actors.named import find_actor, find_newest
from broker.actors.placement import slot_name
from broker.concurrency.back_off import Backoff, Delays
from broker.concurrency.tasks import cancel_and_wait, run_once
from broker.rpc.calls import Calls
from broker.rpc.connection import Connection, ConnectionEnded, LinkRefused, open_connection

_CONNECT_S = 5.0  # others wait for it
_CONNECT_NAMED_S = 1.0  # there is another way, and until it is taken nothing arrives
_ASK = Backoff(0.05, 0.2, jitter=0)  # waits for a reply before an actor is asked once more
_SEEK = Backoff(0.1, 0.5, jitter=0.5)  # between two looks for a newer actor; one costs Ray a round trip
_log = logging.getLogger(__name__)

T = TypeVar("T")


class LinkLost(Exception):
    """The call brought no reply; whether it was executed is not known, unless it was never sent."""

    def __init__(self, method: str, *, was_sent: bool = True) -> None:
        super().__init__(method)
        self.was_sent = was_sent


class ActorPlace(NamedTuple):
    """An actor by its name, and the address of its node."""

    actor: str
    host: str


class Link(Protocol):
    """The way to one slot; tests put a bad one in its place."""

    async def call(self, method: str, *arguments: object, timeout_s: float) -> Any:
        """Call `method` of the actor and return its reply."""

    def close(self) -> None:
        """End the link; calls in flight fail."""


class ActorLink(ABC):
    """A link that connects when it is first used, and again when the connection is over.

    Safe for concurrent calls on one event loop; `close` it there.
    """

    def __init__(self, calls: Calls[Any]) -> None:
        """Connect to nothing yet. `calls` are what the other side can be asked."""
        self._calls = calls
        self._connecting = asyncio.Lock()
        self._connection: Connection | None = None

    async def call(self, method: str, *arguments: object, timeout_s: float) -> Any:
        """Call a method of the actor and return what it answers; cancelling leaves the call running.

        Raises:
            LinkLost: the actor is unreachable, died, does not answer in time, or does not run.
            CannotTravel: an argument is of none of the method's types, or too long.
        """
        was_sent = False
        try:
            async with asyncio.timeout(timeout_s):
                connection = self._connection
                if connection is None or connection.is_over:
                    connection = await self._connect()
                was_sent = True
                return await connection.call(method, *arguments)
        except (ConnectionEnded, RayError, OSError, ValueError) as error:  # TimeoutError is an OSError
            raise LinkLost(method, was_sent=was_sent) from error

    def close(self) -> None:
        """End the connection; calls under way raise `LinkLost`."""
        if self._connection is not None:
            self._connection.end()

    async def _connect(self) -> Connection:
        async with self._connecting:
            if self._connection is None or self._connection.is_over:
                async with asyncio.timeout(_CONNECT_S):
                    self._connection = await self._dial()
            return self._connection

    @abstractmethod
    async def _dial(self) -> Connection:
        """Connect to the actor. Raises ValueError: it does not run."""


class NamedLink(ActorLink):
    """The way to one actor, which has no successor: the connection to a silent one is given up at once."""

    def __init__(self, name: str, calls: Calls[Any]) -> None:
        """Connect to nothing yet. `name` is the actor's, which tells its `address`."""
        super().__init__(calls)
        self._name = name

    async def _dial(self) -> Connection:
        async with asyncio.timeout(_CONNECT_NAMED_S):
            actor: Any = await asyncio.to_thread(find_actor, self._name)
            if actor is None:
                raise ValueError(f"{self._name} does not run")
            address = await _ask_again(actor.address.remote)
            return await open_connection(address, self._calls, self.close)


class SlotLink(ActorLink):
    """The way to one slot of a pool."""

    def __init__(self, kind: str, index: int, calls: Calls[Any]) -> None:
        """Connect to nothing yet. `calls` are what the actors of this kind can be asked."""
        super().__init__(calls)
        self._kind = kind
        self._index = index
        self._is_refused = False
        self._place: ActorPlace | None = None
        self._seeking: asyncio.Task[None] | None = None

    @property
    def place(self) -> ActorPlace | None:
        """The actor that was found last, and where; None before the first one."""
        return self._place

    def close(self) -> None:
        """End the connection; calls under way raise `LinkLost`."""
        if self._seeking is not None:
            self._seeking.cancel()
        super().close()

    async def _dial(self) -> Connection:
        # round trips to Ray's control store that block
        name = await asyncio.to_thread(find_newest, self._kind, self._index)
        actor: Any = None if name is None else await asyncio.to_thread(find_actor, name)
        if name is None or actor is None:
            raise ValueError(f"{slot_name(self._kind, self._index)} does not run")
        return await self._open(name, actor)

    async def _open(self, name: str, actor: Any) -> Connection:
        """Connect to an actor, unless it turns out that there is a newer one. Raises ValueError then."""
        opening = asyncio.ensure_future(self._open_to(name, actor))
        succeeded = asyncio.ensure_future(self._until_succeeded(name))
        try:
            await asyncio.wait({opening, succeeded}, return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():
                raise ValueError(f"{name} has a successor")
            return await opening
        finally:
            await cancel_and_wait(opening, succeeded)

    async def _open_to(self, name: str, actor: Any) -> Connection:
        address = await _ask_again(actor.address.remote)
        self._place = ActorPlace(name, address.host)
        try:
            connection = await open_connection(address, self._calls, lambda: self._seek(name))
        except LinkRefused as error:
            self._note_refusal(error)
            raise
        self._is_refused = False
        return connection

    def _seek(self, name: str) -> None:
        """The actor is silent: begin to look for a newer one."""
        connection = self._connection
        if connection is not None and (self._seeking is None or self._seeking.done()):
            self._seeking = run_once("successor", self._leave_if_succeeded(name, connection))

    async def _leave_if_succeeded(self, name: str, connection: Connection) -> None:
        """End the connection when the slot has a newer actor; return when this one is heard again."""
        await self._until_succeeded(name, lambda: connection.is_silent and not connection.is_over)
        if connection.is_silent:
            connection.end()

    async def _until_succeeded(self, name: str, is_wanted: Callable[[], bool] = lambda: True) -> None:
        """Return when the slot has a newer actor than `name`, or no caller waits any more."""
        delays = Delays(_SEEK)
        while is_wanted():
            await delays.wait()
            with suppress(RayError, OSError, ValueError):  # Ray cannot be asked now
                if await asyncio.to_thread(find_newest, self._kind, self._index) not in (name, None):
                    return

    def _note_refusal(self, error: LinkRefused) -> None:
        """Log it once; it is tried again until either side has been exchanged."""
        if not self._is_refused:
            extra = {"slot": slot_name(self._kind, self._index), "reason": str(error)}
            _log.warning("link_refused", extra=extra)
        self._is_refused = True


class SlotLinks(dict[int, Link]):
    """The ways to the slots of a pool, each of which is there when it is first asked for."""

    def __init__(self, kind: str, calls: Calls[Any], links: Iterable[Link] = ()) -> None:
        """Args: links: the ways to the first slots; those to others are Ray's."""
        super().__init__(enumerate(links))
        self._kind = kind
        self._calls = calls

    def __missing__(self, index: int) -> Link:
        link = self[index] = SlotLink(self._kind, index, self._calls)
        return link

    def close(self) -> None:
        """End all links; calls in flight fail."""
        for link in self.values():
            link.close()


async def _ask_again(ask: Callable[[], Awaitable[T]]) -> T:
    """The first reply to `ask`, which is called again while none comes. Raises what the first failure is.

    Ray fails a call that an actor takes along when it dies, but up to two seconds later; by then another runs
    in its place, which would have answered long ago.
    """
    asked: set[asyncio.Future[T]] = set()
    delays = Delays(_ASK)
    try:
        while True:
            asked.add(asyncio.ensure_future(ask()))
            done, _ = await asyncio.wait(asked, timeout=delays.next_s(), return_when=asyncio.FIRST_COMPLETED)
            if done:
                return await done.pop()
    finally:
        await cancel_and_wait(*asked)
