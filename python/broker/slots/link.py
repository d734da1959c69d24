"""Calls to one slot: Ray places its actor, keeps it alive and finds it; calls go over our own connection.

An actor call costs a millisecond of two processes, a call over the connection some tens of microseconds.
"""

import asyncio
from typing import Any, Protocol

from ray.exceptions import RayError

from broker.slots.connection import Connection, ConnectionEnded, open_connection
from broker.slots.pool import get_actor

_CONNECT_S = 5.0  # others wait for it


class LinkLost(Exception):
    """The call brought no answer; whether it was executed is not known, unless it was never sent."""

    def __init__(self, method: str, *, was_sent: bool = True) -> None:
        super().__init__(method)
        self.was_sent = was_sent


class Link(Protocol):
    """The way to one slot; tests put a bad one in its place."""

    async def call(self, method: str, *arguments: object, timeout_s: float) -> Any:
        """See `SlotLink.call`."""

    def close(self) -> None:
        """See `SlotLink.close`."""


class SlotLink:
    """The way to one slot of a pool. Safe for concurrent calls on one event loop; `close` it there."""

    def __init__(self, kind: str, index: int) -> None:
        self._kind = kind
        self._index = index
        self._connecting = asyncio.Lock()
        self._connection: Connection | None = None

    async def call(self, method: str, *arguments: object, timeout_s: float) -> Any:
        """Call a method of the slot's actor and return what it answers; cancelling leaves the call running.

        Raises:
            LinkLost: the actor is away, died, does not answer in time, or does not run.
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
                    # round trips to Ray's control store that block
                    actor: Any = await asyncio.to_thread(get_actor, self._kind, self._index)
                    self._connection = await open_connection(await actor.address.remote())
            return self._connection
