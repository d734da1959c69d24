"""The base of slot actors, common to all kinds. Thin: the subclass does the work.

Errors are answered as values; a Ray exception therefore always means that the actor itself is in trouble. The
part starts with the first call, and again with the next one when the database could not be reached. A part
that is over takes its process along: Ray starts the actor again, elsewhere if need be, and the new one takes
the slot.
"""

import asyncio
import gc
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

import ray

from broker import timers
from broker.actors.placement import slot_name
from broker.clock import SystemClock
from broker.concurrency.tasks import failing
from broker.errors import BrokerError, Unavailable
from broker.logs import configure_logs
from broker.metrics.counts import Sample
from broker.metrics.exporter import Exporter
from broker.settings import Settings

if TYPE_CHECKING:
    from broker.rpc.calls import Calls
    from broker.rpc.wire import Address

_log = logging.getLogger(__name__)
# What parts keep is tuples. At Python's 700, looking at them takes a quarter of an owner's time.
_GC_THRESHOLDS = (20_000, 20, 50)
_DRAIN_S = 2.0  # for what waits when an actor is exchanged; it is sent again to the next one
_CLOSE_S = 2.0  # for the last replies of a part that ends


class Part(Protocol):
    """What holds a slot."""

    async def ended(self) -> None:
        """Return when the part can go on no longer, as when it was shut out of its slot."""

    async def was_moved(self) -> bool:
        """Whether it has ended so that its process may start another part, which takes the slot again."""

    async def drain(self) -> None:
        """Refuse what is new with `Unavailable`; return when what waits is answered."""

    def figures(self) -> Iterable[Sample]:
        """What it has to tell now, for the metrics."""

    async def close(self) -> None:
        """Let go of the slot and the database; what waits is answered `Unavailable`. Idempotent."""


P = TypeVar("P", bound=Part)


class SlotActor(ABC, Generic[P]):
    """The base of the classes that `broker.actors.pool` makes actors of.

    Attributes:
        kind: what its slots are named for.
        late_s: how late the timers of its loop may be, so that a part with no short waits rests longer.
    """

    kind: ClassVar[str]
    late_s: ClassVar[float] = timers.EXACT_S

    def __init__(
        self, settings: Settings, dsn: str, index: int, term: int | None, calls: "Calls[Any]"
    ) -> None:
        """Listen; nothing is started yet.

        Args:
            term: of the conductor, in which alone the slot may be taken; None where that needs none.
            calls: what may be called over a link.
        """
        # Not above: the conductor would hold it, which listens on nothing.
        from broker.rpc.listener import Listener

        configure_logs(settings, slot_name(self.kind, index))
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        self._settings = settings
        self._dsn = dsn
        self._index = index
        self._term = term
        self._part: P | None = None
        self._starting = asyncio.Lock()
        self._guard: asyncio.Task[None] | None = None
        host = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]  # Ray leaves it without types
        name = slot_name(self.kind, index)
        self._exporter = Exporter(self.kind, name, settings.data_dir, SystemClock(), [self._figures])
        self._listener = Listener(host, calls, self)

    @abstractmethod
    async def _start(self) -> P:
        """Take the slot. Raises BrokerError when it cannot yet."""

    async def address(self) -> "Address":
        """Where what is in its `Calls` can be called too, much cheaper."""
        return await self._listener.address()

    async def ready(self) -> BrokerError | None:
        """Start; None when the part has its slot and all that runs beside it runs."""
        part = await self._get()
        if isinstance(part, BrokerError):
            return part
        return Unavailable(f"{', '.join(names)}: fails repeatedly") if (names := failing()) else None

    async def process_id(self) -> int:
        """The operating system's number of this process; answers at once, also without a slot."""
        return os.getpid()

    async def node_id(self) -> str:
        """Ray's id of the node that this process is on."""
        return ray.get_runtime_context().get_node_id()

    async def stop(self) -> None:
        """Take no more, store what waits, let go of the database; the pool kills the process after it."""
        if self._guard is not None:
            self._guard.cancel()
        if self._part is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._part.drain(), _DRAIN_S)
            await self._part.close()
        await self._exporter.close()

    async def _get(self) -> P | BrokerError:
        """The part, started if need be."""
        async with self._starting:
            if self._part is None:
                timers.allow_late(self.late_s)
                await self._exporter.start()
                try:
                    self._part = await self._start()
                except BrokerError as error:
                    return error
                self._guard = asyncio.create_task(self._watch(self._part), name="guard")
            return self._part

    def _figures(self) -> Iterable[Sample]:
        return () if self._part is None else self._part.figures()

    async def _watch(self, part: P) -> None:
        await part.ended()
        if not await part.was_moved():
            await self._end()
        try:
            async with self._starting, asyncio.timeout(_CLOSE_S):  # callers wait for the next part
                self._part = None
                await part.close()
        except TimeoutError:
            await self._end()
        await self._get()

    async def _end(self) -> None:
        try:
            async with asyncio.timeout(_CLOSE_S):
                if self._part is not None:
                    await self._part.close()
        except TimeoutError:
            _log.warning("part_close_timeout", extra={"index": self._index})
        finally:
            # Not an actor's orderly exit, after which Ray would not start it again.
            os._exit(1)
