"""Channels of notifications, reached as `client.channels`."""

from collections.abc import AsyncGenerator, Awaitable, Callable

from broker.client.connector import Connector
from broker.client.socket import Notification
from broker.client.standby import Standby


class Channels:
    """Notifications without a history."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector

    async def follow(
        self, channel: str, *, followed: Callable[[], Awaitable[None]] | None = None
    ) -> AsyncGenerator[Notification, None]:
        """Notifications of a channel, such as `programs`, `project:football` or `storage:football`.

        Channels remember nothing: a lost connection, or one of a gateway that has fallen silent, raises
        ConnectionLost; follow again, and read by REST what was missed.

        Args:
            followed: awaited once the broker tells from now on; who reads then misses nothing in between.

        Raises:
            ApiError, ConnectionFailed: no gateway takes the connection, or the broker refuses the channel.
        """
        url, socket = await self._connector.open(None)
        standby = Standby(self._connector)
        try:
            async with socket, standby.watch(url, socket):
                await socket.call("subscribe", {"channel": channel})
                if followed is not None:
                    await followed()
                async for notification in socket:
                    if notification.method == "tokenExpiring":
                        await self._connector.renew(socket)
                    else:
                        yield notification
        finally:
            await standby.close()
