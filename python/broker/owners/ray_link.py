"""Calls to one owner over Ray: finds its actor, keeps the handle, gives every fault one name."""

import asyncio
from typing import Any, Protocol

from ray.exceptions import ActorDiedError, RayError

from broker.owners.pool import find_owner


class OwnerLost(Exception):
    """The call brought no answer; whether it was executed is not known."""


class Link(Protocol):
    """The way to one owner; tests put a bad one in its place."""

    async def call(self, method: str, *arguments: object, timeout_s: float) -> Any:
        """See `OwnerLink.call`."""


class OwnerLink:
    """The way to one owner of the pool. Safe for concurrent calls on one event loop."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._handle: Any = None

    async def call(self, method: str, *arguments: object, timeout_s: float) -> Any:
        """Call a method of `OwnerActor` and return what it answers; cancelling leaves the call running.

        Raises:
            OwnerLost: the owner is away, died, does not answer in time, or does not run.
        """
        try:
            async with asyncio.timeout(timeout_s):
                if self._handle is None:
                    # a round trip to Ray's control store that blocks
                    self._handle = await asyncio.to_thread(find_owner, self._index)
                return await getattr(self._handle, method).remote(*arguments)
        except ActorDiedError as error:
            self._handle = None  # for good: the next one of this name is another actor
            raise OwnerLost(method) from error
        except (RayError, TimeoutError, ValueError) as error:
            raise OwnerLost(method) from error
