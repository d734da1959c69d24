"""Another connection beside a silent one.

A gateway whose node has lost its power, or whose link is cut, ends no connection. Gateways therefore show
life every second; when two signs of it are missing, another connection is opened before the silent one is
given up. So a gateway or a network that was only late costs a handshake, and no events.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from broker.client.errors import ClientError, ConnectionLost
from broker.client.socket import Socket

_ABNORMAL = 1006


class Opening(Protocol):
    """Opens connections."""

    async def open(self, avoid: str | None) -> tuple[str, Socket]:
        """A new connection and its URL, not to `avoid` where there is another gateway."""


class Standby:
    """Watches the connections of one subscription, one at a time."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._made: tuple[str, Socket] | None = None

    @property
    def is_ready(self) -> bool:
        """Whether there is another connection already."""
        return self._made is not None

    async def open(self, avoid: str | None) -> tuple[str, Socket]:
        """The connection that is there already, or a new one; raises what opening it does."""
        made, self._made = self._made, None
        return made or await self._opening.open(avoid)

    @asynccontextmanager
    async def watch(self, url: str, socket: Socket) -> AsyncIterator[None]:
        """While inside, end the connection once it is silent; most often with another one in its place."""
        watching = asyncio.create_task(self._replace(url, socket), name="broker silence watch")
        try:
            yield
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching

    async def close(self) -> None:
        """Close a connection that nobody has taken. Idempotent."""
        made, self._made = self._made, None
        if made is not None:
            await made[1].close()

    async def _replace(self, url: str, socket: Socket) -> None:
        while True:
            await socket.silent()
            heard_s = socket.heard_s
            with suppress(ClientError):
                self._made = await self._opening.open(url)
            if socket.heard_s == heard_s:
                socket.lose(ConnectionLost(_ABNORMAL, "the gateway is silent"))
                return
            await self.close()
