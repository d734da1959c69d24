"""The asynchronous client: REST calls, subscriptions and raw connections of one caller."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Literal, Self, overload

from broker.client.address import account_of
from broker.client.analytics import Analytics
from broker.client.audit import AuditLog
from broker.client.calls import Calls
from broker.client.engine import ApiSecret, Credentials, Engine, Identity, IdentityToken, LogIn, Password
from broker.client.errors import ApiError, ConnectionFailed, ProgramDeleted, ServerError, Unsubscribed
from broker.client.images import Images
from broker.client.models import (
    Change,
    Cursor,
    Event,
    Gateways,
    Token,
)
from broker.client.picture import Position
from broker.client.projects import Projects
from broker.client.responses import CHANNEL, LiveResults, ResponseCalls, parse_results
from broker.client.retry import RetryPolicy
from broker.client.revisions import Revisions
from broker.client.socket import Notification, Socket, SocketConfig, open_socket
from broker.client.statistics import Statistics
from broker.client.storage import Storage
from broker.client.subscription import Subscription, SubscriptionConfig
from broker.client.timeline import Seeked, Timeline
from broker.client.tracker import Tracker
from broker.client.users import Users
from broker.clock import Clock, SystemClock
from broker.ids import IdSource

_ASK_AGAIN_S = 2.0  # a viewer that has a gateway to try does not wait longer for a better one


class AsyncClient(Calls, ResponseCalls):
    """A caller of one account's broker. Safe for concurrent use within one event loop.

    Attributes:
        users: the calls on users.
        projects: the calls on projects.
        revisions: the calls on application revisions.
        storage: the calls on stored values.
        statistics: the calls on statistics.
        audit: the calls on the audit log.
        images: pictures, their URLs, and what caches keep of them.
    """

    def __init__(
        self,
        base_url: str,
        *,
        token: str | None = None,
        api_token: str | None = None,
        identity_token: IdentityToken | None = None,
        username: str | None = None,
        password: str | None = None,
        client_id: str = "WebProducerDashboard",
        account: str | None = None,
        retry: RetryPolicy | None = None,
        socket: SocketConfig | None = None,
        subscription: SubscriptionConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Keep the configuration; nothing is sent yet.

        Args:
            base_url: such as `http://demo.localhost:8000`; its first label names the account.
            token: an access token, used until it ends.
            username, password, client_id: fetch tokens, and renew them before they end.
            api_token, client_id: the same with an API token.
            identity_token, client_id: the same with a token of an identity provider, or with a function that
                is called for one that is still good whenever an access token is needed.
            account: as calls on answers name it; when absent the first label of the host, `demo` where that
                is an address or has no other.

        Raises:
            ValueError: a malformed URL, or credentials that do not fit together.
        """
        clock = clock or SystemClock()
        credentials = _credentials(token, api_token, identity_token, username, password, client_id)
        engine = Engine(base_url, credentials, retry or RetryPolicy(), clock)
        super().__init__(engine, clock)
        self._account = account or account_of(engine.base_url)
        self._socket = socket or SocketConfig()
        self._subscription = subscription or SubscriptionConfig()
        self._gateways: Gateways | None = None
        self.users = Users(self._engine)
        self.projects = Projects(self._engine)
        self.revisions = Revisions(self._engine)
        self.storage = Storage(self._engine, IdSource(clock))
        self.statistics = Statistics(self._engine)
        self.audit = AuditLog(self._engine)
        self.analytics = Analytics(self._engine)
        self.images = Images(engine, self._account)

    async def close(self) -> None:
        """Close all HTTP connections. Sockets and subscriptions are their owners' to leave."""
        await self._engine.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- WebSocket

    @asynccontextmanager
    async def socket(self) -> AsyncIterator[Socket]:
        """A connection for JSON-RPC calls, closed at the end of the `async with`.

        Raises:
            ApiError, ConnectionFailed: no gateway takes it.
        """
        _, socket = await self.open(None)
        async with socket:
            yield socket

    @overload
    def subscribe(
        self,
        program_id: str,
        since: Cursor | None = None,
        history: int = 0,
        *,
        changes: Literal[False] = False,
    ) -> Subscription[Event]: ...

    @overload
    def subscribe(
        self, program_id: str, since: Cursor | None = None, history: int = 0, *, changes: bool
    ) -> Subscription[Change]: ...

    def subscribe(
        self, program_id: str, since: Cursor | None = None, history: int = 0, *, changes: bool = False
    ) -> Subscription[Event] | Subscription[Change]:
        """Follow a program: in order, nothing twice, over any number of connections.

        Args:
            since: go on after this position; raises HistoryLost while iterating when that is too long ago.
            history: without `since`, begin with the last so many pushes.
            changes: also yield what was updated, deleted or replaced.
        """
        tracker = Tracker(program_id, since, history)
        return Subscription(self, self._clock, self._subscription, tracker, changes=changes)

    def timeline(
        self,
        program_id: str,
        *,
        position: Position | None = None,
        delay_ms: float = 0.0,
        lookback_ms: float = 0.0,
        seeked: Seeked | None = None,
    ) -> Timeline:
        """Follow a program in time with a picture: an event comes when the picture is where it belongs.

        Args:
            position: tells which moment the picture shows, on the axis of `timecode`: milliseconds since 1970
                or an aware datetime; None, or an exception, is unknown. Asked ten times a second.
            delay_ms: how far the picture is behind the broker's clock, where there is no position or it is
                unknown for five seconds. With 0 events then come as they are published.
            lookback_ms: how much of what lies before the picture comes at once, at the start and after a
                seek; `math.inf` is all.
            seeked: called, and awaited where it is async, after a seek and before what belongs to the new
                place.

        Raises:
            ValueError: a negative time.
        """
        return Timeline(self, self._clock, program_id, position, delay_ms, lookback_ms, seeked)

    async def follow(
        self, channel: str, *, followed: Callable[[], Awaitable[None]] | None = None
    ) -> AsyncGenerator[Notification, None]:
        """Notifications of a channel, such as `programs`, `project:football` or `storage:football`.

        Channels remember nothing: a lost connection raises ConnectionLost; follow again, and read by REST
        what was missed.

        Args:
            followed: awaited once the broker tells from now on; who reads then misses nothing in between.
        """
        async with self.socket() as socket:
            await socket.call("subscribe", {"channel": channel})
            if followed is not None:
                await followed()
            async for notification in socket:
                if notification.method == "tokenExpiring":
                    await self.renew(socket)
                else:
                    yield notification

    async def follow_responses(
        self, program_id: str, *, followed: Callable[[], Awaitable[None]] | None = None
    ) -> AsyncGenerator[LiveResults, None]:
        """A program's live results as they change, each measure of a context at most once a second.

        What has not changed since is not told. A lost connection raises ConnectionLost; follow again.

        Args:
            followed: as for `follow`; the place to read the report. Results may be a second behind.

        Raises:
            NotFound, Unauthenticated: no such program, or none that the caller may read.
            ProgramDeleted, Unsubscribed: while iterating, that has become so.
        """
        async with contextlib.aclosing(
            self.follow(f"{CHANNEL}{program_id}", followed=followed)
        ) as notifications:
            async for told in notifications:
                match told.method:
                    case "results":
                        for result in parse_results(told.params):
                            yield result
                    case "programDeleted":
                        raise ProgramDeleted(program_id)
                    case "unsubscribed":
                        raise Unsubscribed(program_id, str(told.params.get("reason", "")))

    async def open(self, avoid: str | None) -> tuple[str, Socket]:
        """See `broker.client.subscription.Connector.open`."""
        url = await self._find_gateway(avoid)
        token = await self._engine.token()
        try:
            return url, await open_socket(url, token, self._socket)
        except ApiError as error:
            if error.status != 401 or not self._engine.forget_token(token):
                raise
        return url, await open_socket(url, await self._engine.token(), self._socket)

    async def renew(self, socket: Socket) -> None:
        """See `broker.client.subscription.Connector.renew`."""
        credentials = self._engine.credentials
        if not isinstance(credentials, LogIn):
            return
        asked = self._clock.monotonic_s()
        # when it fails the connection goes on without a name, and the broker says what ends by that
        with contextlib.suppress(ApiError):
            self._engine.adopt(Token.parse(await socket.call("login", await credentials.body())), asked)

    async def _find_gateway(self, avoid: str | None) -> str:
        """Ask for a gateway; while the API is away or slow, go to one that was known before."""
        try:
            async with asyncio.timeout(None if self._gateways is None else _ASK_AGAIN_S):
                self._gateways = await self.connect()
        except (ConnectionFailed, ServerError, TimeoutError):
            if self._gateways is None:
                raise
        others = [url for url in (self._gateways.url, *self._gateways.urls) if url != avoid]
        return others[0] if others else self._gateways.url


def _credentials(
    token: str | None,
    api_token: str | None,
    identity_token: IdentityToken | None,
    username: str | None,
    password: str | None,
    client_id: str,
) -> Credentials:
    if (username is None) != (password is None):
        raise ValueError("username and password go together")
    if sum(given is not None for given in (token, api_token, identity_token, username)) > 1:
        raise ValueError("give a token, an API token, an identity token or a username, and no two of them")
    if username is not None and password is not None:
        return Password(username, password, client_id)
    if identity_token is not None:
        return Identity(identity_token, client_id)
    return token if api_token is None else ApiSecret(api_token, client_id)
