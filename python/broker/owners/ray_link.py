"""Calls to one owner: Ray places it, keeps it alive and finds it; the calls go over a connection of our own.

An actor call costs a millisecond of two processes, a call over the connection some tens of microseconds.
"""

import asyncio
from typing import Any, Protocol

from ray.exceptions import RayError

from broker.owners.connection import Connection, ConnectionEnded, open_connection
from broker.owners.pool import find_owner

_CONNECT_S = 5.0  # others wait for it


class OwnerLost(Exception):
    """The call brought no answer; whether it was executed is not known."""


class Link(Protocol):
    """The way to one owner; tests put a bad one in its place."""

    async def call(self, method: str, *arguments: object, timeout_s: float) -> Any:
        """See `OwnerLink.call`."""

    def close(self) -> None:
        """See `OwnerLink.close`."""


class OwnerLink:
    """The way to one owner of the pool. Safe for concurrent calls on one event loop; `close` it there."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._connecting = asyncio.Lock()
        self._connection: Connection | None = None

    async def call(self, method: str, *arguments: object, timeout_s: float) -> Any:
        """Call a method of `OwnerActor` and return what it answers; cancelling leaves the call running.

        Raises:
            OwnerLost: the owner is away, died, does not answer in time, or does not run.
        """
        try:
            async with asyncio.timeout(timeout_s):
                connection = self._connection
                if connection is None or connection.is_over:
                    connection = await self._connect()
                return await connection.call(method, *arguments)
        except (ConnectionEnded, RayError, OSError, ValueError) as error:  # TimeoutError is an OSError
            raise OwnerLost(method) from error

    def close(self) -> None:
        """End the connection; calls under way raise `OwnerLost`."""
        if self._connection is not None:
            self._connection.end()

    async def _connect(self) -> Connection:
        async with self._connecting:
            if self._connection is None or self._connection.is_over:
                async with asyncio.timeout(_CONNECT_S):
                    # round trips to Ray's control store that block
                    owner: Any = await asyncio.to_thread(find_owner, self._index)
                    self._connection = await open_connection(await owner.address.remote())
            return self._connection
