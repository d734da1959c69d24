"""An owner as a Ray actor. Thin: what it does is `broker.owners.owner`.

Errors are answered as values; a Ray exception therefore always means that the actor itself is in trouble. The
owner starts with the first call, and again with the next one when the database could not be reached. An owner
that is over takes its process along: Ray starts the actor anew, elsewhere if need be, and the new one takes
the slot.
"""

import asyncio
import gc
import logging
import os
from collections.abc import Sequence
from contextlib import suppress

import ray

from broker import timers
from broker.errors import BrokerError
from broker.owners.commands import Answer, Command
from broker.owners.listener import Listener
from broker.owners.owner import FollowAnswer, Owner
from broker.owners.protocol import Entry
from broker.owners.sessions import Follow, PollAnswer
from broker.owners.wire import Address
from broker.settings import Settings

_log = logging.getLogger(__name__)
# Events are tuples that are kept. At Python's 700, looking at them takes a quarter of an owner's time.
_GC_THRESHOLDS = (20_000, 20, 50)
_DRAIN_S = 2.0  # for what waits when an owner is exchanged; it is sent again to the next one
_CLOSE_S = 2.0  # for the last answers of an owner that ends


class OwnerActor:
    """The class that `broker.owners.pool` makes an actor of. See `Owner` for each method."""

    def __init__(self, settings: Settings, dsn: str, index: int) -> None:
        logging.basicConfig(level=settings.log_level.upper())
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        self._settings = settings
        self._dsn = dsn
        self._index = index
        self._starting = asyncio.Lock()
        self._owner: Owner | None = None
        self._guard: asyncio.Task[None] | None = None
        called = (
            self.ready, self.process_id, self.submit, self.nudge, self.open, self.follow, self.unfollow,
            self.poll, self.leave, self.history,
        )  # fmt: skip
        methods = {method.__name__: method for method in called}
        host = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]  # Ray leaves it without types
        self._listener = Listener(host, methods)

    async def address(self) -> Address:
        """Where the methods besides this, `stop` and `restart` can be called too, much cheaper."""
        return await self._listener.address()

    async def ready(self) -> BrokerError | None:
        """Start; None when the owner has its slot."""
        owner = await self._get()
        return owner if isinstance(owner, BrokerError) else None

    async def process_id(self) -> int:
        """The operating system's number of this process; answers at once, also without a slot."""
        return os.getpid()

    async def submit(self, commands: Sequence[Command], wait_s: float) -> list[Answer] | BrokerError:
        """See `Owner.submit`."""
        owner = await self._get()
        return owner if isinstance(owner, BrokerError) else await owner.submit(commands, wait_s)

    async def nudge(self, account: str, channel: str) -> None:
        """See `Owner.nudge`."""
        if self._owner is not None:
            self._owner.nudge(account, channel)

    async def open(self, name: str, follows: Sequence[Follow]) -> list[FollowAnswer] | BrokerError:
        """See `Owner.open`."""
        owner = await self._get()
        return owner if isinstance(owner, BrokerError) else await owner.open(name, follows)

    async def follow(self, name: str, follows: Sequence[Follow]) -> list[FollowAnswer] | None:
        """See `Owner.follow`."""
        return None if self._owner is None else await self._owner.follow(name, follows)

    async def unfollow(self, name: str, numbers: Sequence[int]) -> None:
        """See `Owner.unfollow`."""
        if self._owner is not None:
            self._owner.unfollow(name, numbers)

    async def poll(self, name: str, ack: int) -> PollAnswer | BrokerError | None:
        """See `Owner.poll`."""
        return None if self._owner is None else await self._owner.poll(name, ack)

    async def leave(self, name: str) -> None:
        """See `Owner.leave`."""
        if self._owner is not None:
            self._owner.leave(name)

    async def history(self, topic: str, epoch: str, after_seq: int, limit: int) -> list[Entry] | BrokerError:
        """See `Owner.history`."""
        owner = await self._get()
        if isinstance(owner, BrokerError):
            return owner
        return await owner.history(topic, epoch, after_seq, limit)

    async def stop(self) -> None:
        """Take no more, store what waits, let go of the database; the pool kills the process after it."""
        if self._guard is not None:
            self._guard.cancel()
        if self._owner is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._owner.drain(), _DRAIN_S)
            await self._owner.close()

    async def restart(self) -> None:
        """End the process; Ray starts the actor anew."""
        await self._end()

    async def _get(self) -> Owner | BrokerError:
        async with self._starting:
            if self._owner is None:
                timers.allow_late(timers.EXACT_S)
                try:
                    self._owner = await Owner.start(self._settings, self._dsn, self._index)
                except BrokerError as error:
                    return error
                self._guard = asyncio.create_task(self._watch(self._owner), name="guard")
            return self._owner

    async def _watch(self, owner: Owner) -> None:
        await owner.ended()
        await self._end()

    async def _end(self) -> None:
        try:
            async with asyncio.timeout(_CLOSE_S):
                if self._owner is not None:
                    await self._owner.close()
        except TimeoutError:
            _log.warning("owner_close_timeout index=%d", self._index)
        finally:
            # Not an actor's orderly exit, after which Ray would not start it again.
            os._exit(1)
