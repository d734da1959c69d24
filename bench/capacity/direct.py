"""The way to a process whose address is known, without Ray."""

import asyncio
from typing import Any, Self

from broker.actors.link import LinkLost
from broker.rpc.calls import Calls
from broker.rpc.connection import Connection, ConnectionEnded, open_connection
from broker.rpc.wire import Address


class Direct:
    """A link over one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @classmethod
    async def open(cls, address: Address, calls: Calls[Any]) -> Self:
        """Connect. Raises as `open_connection` does."""
        return cls(await open_connection(address, calls))

    async def call(self, method: str, *arguments: object, timeout_s: float) -> Any:
        """Call the process. Raises LinkLost."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._connection.call(method, *arguments)
        except (ConnectionEnded, TimeoutError) as error:
            raise LinkLost(method) from error

    def close(self) -> None:
        """End the connection."""
        self._connection.end()
