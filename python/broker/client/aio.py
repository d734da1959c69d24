"""The asynchronous client of one caller: its resources, its subscriptions and its raw connections."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self, TypedDict

from broker.client.address import account_of
from broker.client.analytics import Analytics
from broker.client.audit import Audit
from broker.client.channels import Channels
from broker.client.connector import Connector, Gateways
from broker.client.data_sources import DataSources
from broker.client.engine import ApiSecret, Credentials, Engine, Identity, IdentityToken, Password
from broker.client.events import Events
from broker.client.images import Images
from broker.client.programs import Programs
from broker.client.projects import Projects
from broker.client.responses import Responses
from broker.client.retry import RetryPolicy
from broker.client.revisions import Revisions
from broker.client.socket import Socket, SocketConfig
from broker.client.statistics import Statistics
from broker.client.status import Status
from broker.client.storage import Storage
from broker.client.subscription import SubscriptionConfig
from broker.client.tokens import ApiTokens, Tokens
from broker.client.users import Users
from broker.clock import Clock, SystemClock
from broker.ids import IdSource


class ClientOptions(TypedDict, total=False):
    """The keyword arguments of a client; `AsyncClient` says what they mean."""

    token: str | None
    api_token: str | None
    identity_token: IdentityToken | None
    username: str | None
    password: str | None
    client_id: str
    account: str | None
    retry: RetryPolicy | None
    socket: SocketConfig | None
    subscription: SubscriptionConfig | None
    clock: Clock | None


class AsyncClient:
    """A caller of one account's broker. Safe for concurrent use within one event loop.

    Attributes:
        programs, events, projects, users, revisions, storage: the resources of the account.
        responses: answers of the audience.
        channels: notifications without a history.
        images: the images themselves, their URLs, and what caches keep of them.
        analytics, statistics, audit: what is measured, counted and logged.
        data_sources: requests that the broker sends for applications.
        tokens, api_tokens: what the caller signs in with.
        status, gateways: the broker itself, and where WebSocket connections go.
        publish, subscribe: short for `events.publish` and `events.subscribe`.
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
        account = account or account_of(engine.base_url.host)
        self._engine = engine
        self.gateways = Gateways(engine)
        self._connector = Connector(engine, self.gateways, socket or SocketConfig(), clock)
        self.status = Status(engine, clock)
        self.tokens = Tokens(engine)
        self.api_tokens = ApiTokens(engine)
        self.users = Users(engine)
        self.projects = Projects(engine)
        self.programs = Programs(engine)
        self.events = Events(
            engine, self.status, self._connector, subscription or SubscriptionConfig(), clock
        )
        self.channels = Channels(self._connector)
        self.responses = Responses(engine, account, self.channels)
        self.revisions = Revisions(engine)
        self.data_sources = DataSources(engine)
        self.storage = Storage(engine, IdSource(clock))
        self.images = Images(engine, account)
        self.statistics = Statistics(engine)
        self.analytics = Analytics(engine)
        self.audit = Audit(engine)
        self.publish = self.events.publish
        self.subscribe = self.events.subscribe

    async def close(self) -> None:
        """Close all HTTP connections. Sockets and subscriptions are their owners' to leave."""
        await self._engine.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @asynccontextmanager
    async def socket(self) -> AsyncIterator[Socket]:
        """A connection for JSON-RPC calls, closed at the end of the `async with`. Raises as `open_socket`."""
        async with await self.open_socket() as socket:
            yield socket

    async def open_socket(self) -> Socket:
        """A connection for JSON-RPC calls that the caller closes.

        Raises:
            ApiError, ConnectionFailed: no gateway takes it.
        """
        _, socket = await self._connector.open(None)
        return socket


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
        raise ValueError("give only one of token, api_token, identity_token and username")
    if username is not None and password is not None:
        return Password(username, password, client_id)
    if identity_token is not None:
        return Identity(identity_token, client_id)
    return token if api_token is None else ApiSecret(api_token, client_id)
