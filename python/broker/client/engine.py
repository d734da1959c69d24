"""Runs one call: authenticates it, sends it, retries it where that is safe, and parses the reply.

The rules of trying again are `broker.client.retry`'s; this is the I/O around them.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from broker.client import wire
from broker.client.errors import (
    ApiError,
    ClientError,
    ConnectionFailed,
    ProtocolError,
    is_brokers,
    parse_api_error,
)
from broker.client.models import Token
from broker.client.query import fields, match
from broker.client.retry import (
    Failure,
    RetryPolicy,
    Safety,
    failure_of_error,
    is_retried,
    safety_of_method,
)
from broker.clock import Clock
from broker.ids import IdSource

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
R = TypeVar("R")

IdentityToken = str | Callable[[], str | Awaitable[str]]

_RENEW_BEFORE_S = 60.0
_RENEW_FRACTION = 0.2  # of the lifetime, for short-lived tokens
_IDENTITY_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_TOKEN_UNKNOWN = "invalid_token"  # noqa: S105 - the name of an error


@dataclass(frozen=True, slots=True)
class Slice(Generic[T]):
    """One page of a list, and the cursor of the next one, None on the last."""

    items: T
    cursor: str | None


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One call of the REST API.

    Attributes:
        path: below `/api/v1`, its parts quoted.
        body: what to send as JSON; None sends nothing.
        content: opens the body again for each try, in place of `body`.
        is_single_try: the body cannot be read twice.
        key: the idempotency key, the same for every try; when it is absent a change gets one.
        result: the type that the answer is read as; `wire.NOTHING` for none.
        own_safety: what the method does not say.
        is_forwarded: an error may be that of a server that the broker asked, in whatever form.
        is_tagged: the result is a `Model` whose `etag` is the answer's.
    """

    method: str
    path: str
    result: type[T]
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    content: Callable[[], AsyncIterator[bytes]] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    own_safety: Safety | None = None
    is_signed: bool = True
    is_forwarded: bool = False
    is_tagged: bool = False
    is_single_try: bool = False
    timeout_s: float | None = None

    @property
    def safety(self) -> Safety:
        """Whether it may be made twice."""
        return self.own_safety or safety_of_method(self.method)


class _Unanswered(Exception):
    """Something answered with an error, and not as the broker does."""

    def __init__(self, status: int, retry_after_s: float | None) -> None:
        super().__init__(f"something in front of the broker answered {status}")
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Password:
    """A log-in with which tokens are fetched and renewed."""

    username: str
    password: str = field(repr=False)
    client_id: str = "WebProducerDashboard"

    async def body(self) -> dict[str, str]:
        """The body of `POST /token` (RFC 6749, section 4.3.2) and the params of `login`."""
        return {
            "grant_type": "password",
            "client_id": self.client_id,
            "username": self.username,
            "password": self.password,
        }


@dataclass(frozen=True, slots=True)
class ApiSecret:
    """An API token with which access tokens are fetched and renewed."""

    token: str = field(repr=False)
    client_id: str = "WebProducerDashboard"

    async def body(self) -> dict[str, str]:
        """The body of `POST /token` and the params of `login`."""
        return {"grant_type": "api_token", "client_id": self.client_id, "token": self.token}


@dataclass(frozen=True, slots=True)
class Identity:
    """Tokens of an identity provider, with which access tokens are fetched and renewed.

    Attributes:
        token: a token, or what gives one that is still good each time that it is called.
    """

    token: IdentityToken = field(repr=False)
    client_id: str = "WebProducerDashboard"

    async def body(self) -> dict[str, str]:
        """The body of `POST /token` (RFC 7523, section 2.1) and the params of `login`."""
        token = self.token if isinstance(self.token, str) else self.token()
        text = token if isinstance(token, str) else await token
        return {"grant_type": _IDENTITY_GRANT, "client_id": self.client_id, "token": text}


LogIn = Password | ApiSecret | Identity
Credentials = LogIn | str | None
"""A log-in, an access token, or nothing for a caller without a name."""


class Engine:
    """One HTTP connection pool and one token for it. Safe for concurrent use within one event loop."""

    def __init__(self, base_url: str, credentials: Credentials, retry: RetryPolicy, clock: Clock) -> None:
        """Raises ValueError when `base_url` is none."""
        # Not above: whoever imports the SDK need not wait for httpx.
        from broker.client.connection_pool import ConnectionPool, next_cursor

        self._pool = ConnectionPool(base_url, retry.timeout_s)
        self._next_cursor = next_cursor
        self.base_url = self._pool.base_url
        self.credentials = credentials
        self._retry = retry
        self._clock = clock
        self._ids = IdSource(clock)
        self._logging_in = asyncio.Lock()
        self._token: str | None = credentials if isinstance(credentials, str) else None
        self._renew_at = float("inf")
        self._ends_at = float("inf")

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.close()

    async def send(self, call: Call[T]) -> T:
        """Make a call. Safe to cancel; what was sent may still take effect.

        Raises:
            ApiError: the broker's answer, after the tries that were worth it.
            ConnectionFailed: no answer of the broker before the deadline.
            ProtocolError: the call succeeded, and the result is no broker's.
        """
        return (await self._try(call, self._answer)).items

    async def send_paged(self, call: Call[T]) -> Slice[T]:
        """As `send`, with where the list goes on."""
        return await self._try(call, self._answer)

    @asynccontextmanager
    async def stream(self, call: Call[Any]) -> "AsyncIterator[httpx.Response]":
        """Make a call and read its answer in pieces; tried again until the head of the answer is there."""
        reply = await self._try(call, self._open)
        try:
            yield reply
        except self._pool.broken as error:
            raise ConnectionFailed(f"the response was cut off: {error or type(error).__name__}") from error
        finally:
            await reply.aclose()

    async def login(self) -> Token:
        """Fetch a new token with what the client was given to log in with, whatever the old one's state.

        Raises:
            BadCredentials: it is wrong.
            ValueError: the client has none of them.
        """
        if not isinstance(self.credentials, LogIn):
            raise ValueError("logging in needs a username and a password, an API token or an identity token")
        body = await self.credentials.body()
        asked = self._clock.monotonic_s()
        call = Call("POST", "/token", Token, body=body, is_signed=False, own_safety=Safety.REPEATABLE)
        token = await self.send(call)
        self.adopt(token, asked)
        return token

    def adopt(self, token: Token, asked_s: float) -> None:
        """Use `token`, asked for at the monotonic moment `asked_s`, from now on."""
        self._token = token.access_token
        self._ends_at = asked_s + token.expires_in_s
        self._renew_at = self._ends_at - min(_RENEW_BEFORE_S, token.expires_in_s * _RENEW_FRACTION)

    async def token(self) -> str | None:
        """A token that has some life left; None for an anonymous client. One log-in at a time."""
        if not isinstance(self.credentials, LogIn):
            return self._token
        if self._token is not None and self._clock.monotonic_s() < self._renew_at:
            return self._token
        async with self._logging_in:
            if self._token is None or self._clock.monotonic_s() >= self._renew_at:
                await self._renew()
        return self._token

    async def _renew(self) -> None:
        try:
            await self.login()
        except ClientError as error:
            is_alive = self._token is not None and self._clock.monotonic_s() < self._ends_at
            if not is_alive or (isinstance(error, ApiError) and error.status < 429):
                raise

    def forget_token(self, token: str | None) -> bool:
        """Drop a refused token, unless it has been replaced. Returns whether a new one is available."""
        if not isinstance(self.credentials, LogIn) or token is None:
            return False
        if self._token == token:
            self._token = None
        return True

    async def _try(self, call: Call[T], send: Callable[[Call[T]], Awaitable[R]]) -> R:
        started, attempt = self._clock.monotonic_s(), 0
        last: ClientError
        is_renewed = False
        if call.key is None and call.safety is Safety.KEYED:
            call = replace(call, key=self._ids.uuid7())
        while True:
            token = await self.token() if call.is_signed else None
            try:
                return await send(_signed(call, token))
            except ApiError as error:
                is_stale = error.name == _TOKEN_UNKNOWN and not (is_renewed or call.is_single_try)
                if is_stale and self.forget_token(token):
                    is_renewed = True
                    continue
                failure, retry_after_s = failure_of_error(error.status, error.name), error.retry_after_s
                last = error
            except _Unanswered as error:
                failure, retry_after_s = Failure.OPEN, error.retry_after_s
                last = _connection_failed(self.base_url, error)
            except self._pool.broken as error:
                failure = Failure.CLEAR if isinstance(error, self._pool.never_sent) else Failure.OPEN
                retry_after_s, last = None, _connection_failed(self.base_url, error)
            elapsed_s = self._clock.monotonic_s() - started
            wait_s = self._retry.wait_s(attempt, elapsed_s, retry_after_s)
            if wait_s is None or call.is_single_try or not is_retried(failure, call.safety):
                raise last
            attempt += 1
            await asyncio.sleep(wait_s)

    async def _request(self, call: Call[Any], *, is_streamed: bool = False) -> "httpx.Response":
        headers = dict(call.headers)
        content: Any = None
        if call.content is not None:
            content = call.content()
        elif call.body is not None:
            content = wire.encode(call.body)
        if content is not None:
            headers.setdefault("Content-Type", "application/json")
        if call.key is not None:
            headers["Idempotency-Key"] = call.key
        query = {name: _query_text(value) for name, value in call.query.items() if value is not None}
        return await self._pool.send(
            call.method,
            call.path,
            query=query,
            content=content,
            headers=headers,
            timeout_s=call.timeout_s or self._retry.timeout_s,
            is_streamed=is_streamed,
        )

    async def _answer(self, call: Call[T]) -> Slice[T]:
        reply = await self._request(call)
        if not reply.is_success:
            raise _failure(call, reply)
        result: Any = None if call.result is wire.NOTHING else wire.decode(reply.content, call.result)
        if call.is_tagged:
            result = msgspec.structs.replace(result, etag=reply.headers.get("ETag"))
        return Slice(result, self._next_cursor(reply))

    async def _open(self, call: Call[Any]) -> "httpx.Response":
        reply = await self._request(call, is_streamed=True)
        if reply.is_success:
            return reply
        try:
            await reply.aread()
            raise _failure(call, reply)
        finally:
            await reply.aclose()


class Group:
    """The calls on one kind of resource. Every method may raise what `Engine.send` raises.

    They are tried again within the client's `RetryPolicy`. Every change goes with an idempotency key, the
    caller's or one of its own, the same with every try: what is retried is never done twice.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def _get(
        self, path: str, result: type[T], query: Mapping[str, Any] | None = None, *, is_tagged: bool = False
    ) -> T:
        return await self._engine.send(Call("GET", path, result, query=query or {}, is_tagged=is_tagged))

    async def _create(
        self, path: str, result: type[T], body: Mapping[str, Any], key: str | None, *, is_tagged: bool = False
    ) -> T:
        return await self._engine.send(Call("POST", path, result, body=body, key=key, is_tagged=is_tagged))

    async def _update(
        self,
        path: str,
        result: type[T],
        values: Mapping[str, Any],
        key: str | None,
        if_match: str | None = None,
        *,
        is_tagged: bool = False,
    ) -> T:
        """Replace the fields that are not `UNSET`."""
        body, headers = fields(values), match(if_match)
        call = Call("PUT", path, result, body=body, headers=headers, key=key, is_tagged=is_tagged)
        return await self._engine.send(call)

    async def _delete(self, path: str, key: str | None) -> None:
        await self._engine.send(Call("DELETE", path, wire.NOTHING, key=key))


def _signed(call: Call[T], token: str | None) -> Call[T]:
    if token is None:
        return call
    headers = {**call.headers, "Authorization": f"Bearer {token}"}
    return replace(call, headers=headers)


def _connection_failed(url: "httpx.URL", error: Exception) -> ConnectionFailed:
    address = f"{url.scheme}://{url.netloc.decode()}"
    failed = ConnectionFailed(f"no response from {address}: {error or type(error).__name__}")
    failed.__cause__ = error
    return failed


def _failure(call: Call[Any], reply: "httpx.Response") -> Exception:
    error, is_ours = read_error(reply.status_code, reply.content, reply.headers)
    if call.is_forwarded or is_ours:
        return error
    return _Unanswered(reply.status_code, error.retry_after_s)


def read_error(status: int, content: bytes | bytearray, headers: Mapping[str, str]) -> tuple[ApiError, bool]:
    """The error of an answer, and whether the broker made it, or something in front of it."""
    try:
        body = wire.parse(content)
    except ProtocolError:  # no JSON
        body = None
    request_id, retry_after = headers.get("X-Request-Id", ""), headers.get("Retry-After")
    error = parse_api_error(status, body, request_id=request_id, retry_after=retry_after)
    return error, is_brokers(status, body)


def _query_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
