"""Finds a gateway and opens WebSocket connections to it with a valid token."""

import asyncio
import contextlib

from broker.client.engine import Call, Engine, Group, LogIn
from broker.client.errors import ApiError, ConnectionFailed, ServerError
from broker.client.models import GatewayChoice, Token
from broker.client.socket import Socket, SocketConfig, open_socket
from broker.clock import Clock

_ASK_AGAIN_S = 2.0  # a viewer that has a gateway to try does not wait longer for a better one


class Gateways(Group):
    """Where WebSocket connections go, reached as `client.gateways`."""

    async def get(self, program_id: str | None = None) -> GatewayChoice:
        """Where to open a WebSocket, the least loaded gateway first.

        Args:
            program_id: of the program that will be followed; gateways that follow it already are preferred.
        """
        return await self._engine.send(
            Call("GET", "/connect", GatewayChoice, query={"programId": program_id})
        )


class Connector:
    """Opens the connections of one client's subscriptions and channels."""

    def __init__(self, engine: Engine, gateways: Gateways, config: SocketConfig, clock: Clock) -> None:
        self._engine = engine
        self._gateways = gateways
        self._config = config
        self._clock = clock
        self._known: GatewayChoice | None = None

    async def open(self, avoid: str | None) -> tuple[str, Socket]:
        """A new connection and its URL, not to `avoid` where there is another gateway.

        Raises:
            ApiError, ConnectionFailed: no gateway takes it.
        """
        url = await self._find(avoid)
        token = await self._engine.token()
        try:
            return url, await open_socket(url, token, self._config)
        except ApiError as error:
            if error.status != 401 or not self._engine.forget_token(token):
                raise
        return url, await open_socket(url, await self._engine.token(), self._config)

    async def renew(self, socket: Socket) -> None:
        """Log in again on an open connection whose token ends soon; does nothing without a log-in."""
        credentials = self._engine.credentials
        if not isinstance(credentials, LogIn):
            return
        asked = self._clock.monotonic_s()
        # when it fails the connection goes on without a name, and the broker says what ends by that
        with contextlib.suppress(ApiError):
            self._engine.adopt(Token.parse(await socket.call("login", await credentials.body())), asked)

    async def _find(self, avoid: str | None) -> str:
        """Ask for a gateway; while the API is unavailable or slow, use a gateway known from before."""
        try:
            async with asyncio.timeout(None if self._known is None else _ASK_AGAIN_S):
                self._known = await self._gateways.get()
        except (ConnectionFailed, ServerError, TimeoutError):
            if self._known is None:
                raise
        others = [url for url in (self._known.url, *self._known.urls) if url != avoid]
        return others[0] if others else self._known.url
