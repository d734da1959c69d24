"""The part of Matomo's HTTP API that the broker needs: reads, changes, and reports.

How Matomo 5 answers decides how its answers are read:

* An error comes as HTTP 200 with `{"result": "error", "message": …}`, missing rights as 401 with the same, a
  token that is not accepted as 401 with a page, an outage as 500 with a page. What is no JSON is no answer.
* A call of several methods (`API.getBulkRequest`) answers a list, in which each can be an error.
* Numbers come as numbers or as texts, empty objects as lists, plain values as `{"value": …}`.
* What stands in the URL's query wins over the body, so the URL has none: everything is in the body, the token
  too, which is thus in no log of a server in between.
* A report is built whole before its first byte is sent. A long one is passed on in parts as they come, after
  a look at its beginning, and is never held whole. What it says is JSON when its first and its last
  byte are those of a list or an object; short ones are parsed.

Replies must not be compressed: a part of a compressed one may become a thousand times as long.

Reads are tried again where that may help. A change is sent once: when no answer comes, Matomo may have done
it, and the error says so. Redirects are not followed, because the token would go along.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote_plus

import httpx
import orjson

from broker.analytics.errors import MatomoError, refused_by_matomo
from broker.concurrency.back_off import Backoff, Delays

Value = str | int | Sequence[Any]
_T = TypeVar("_T")

_JSON = "json"
_FORM = {
    "Content-Type": "application/x-www-form-urlencoded",
    "Accept": "application/json",
    "Accept-Encoding": "identity",
}
_RETRY = Backoff(0.3, 0.9, jitter=2 / 3)  # between two tries of a read
_READS = 3  # tries of one
AHEAD_BYTES = 256 << 10  # of a report that are read before any is passed on: a table of 2,500 rows
_END_BYTES = 64  # of a report that are looked at for its last bracket
# Matomo writes an error with its result first.
_REPORT = re.compile(rb'\s*(?!\{\s*"result"\s*:\s*"error")[\[{]')
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


@dataclass(frozen=True, slots=True)
class MatomoConfig:
    """Bounds of one process.

    Attributes:
        timeout_s: of one request, from its beginning to the last byte of its reply; of a report without the
            time that its reader takes.
        connect_s: of that, for the connection.
        max_bytes: of a reply that is no report.
        connections: to all Matomos together, for set-ups.
        report_connections: likewise, for reports.
    """

    timeout_s: float = 30.0
    connect_s: float = 5.0
    max_bytes: int = 16 << 20
    connections: int = 20
    report_connections: int = 100


@dataclass(frozen=True, slots=True)
class Request:
    """One call of a method of Matomo's API."""

    method: str
    parameters: Mapping[str, Value]


def open_http(config: MatomoConfig) -> httpx.AsyncClient:
    """The connections that all clients of a process share; the caller closes them."""
    return httpx.AsyncClient(
        # Proxies of the environment would see tokens.
        trust_env=False,
        follow_redirects=False,
        timeout=httpx.Timeout(config.timeout_s, connect=config.connect_s),
        limits=httpx.Limits(max_connections=config.connections),
    )


class Matomo:
    """One user's view of one Matomo. Methods raise `MatomoError`, may run side by side, may be cancelled."""

    def __init__(self, http: httpx.AsyncClient, url: str, token: str, config: MatomoConfig) -> None:
        """Args: url: of Matomo's directory, without a slash at its end."""
        self._http = http
        self._url = f"{url}/index.php"
        self._token = token
        self._config = config

    async def read(self, method: str, **parameters: Value) -> Any:
        """What a method that changes nothing answers."""
        delays = Delays(_RETRY)
        for left in reversed(range(_READS)):
            try:
                return await self._call(Request(method, parameters))
            except MatomoError as error:
                if not left or not error.is_passing:
                    raise
                await delays.wait()
        raise AssertionError("the last attempt returns or raises")

    async def read_all(self, *requests: Request) -> list[Any]:
        """What several methods that change nothing answer; a `MatomoError` stands for one that failed."""
        urls = [_urlencoded({"method": one.method, **one.parameters}) for one in requests]
        replies = await self.read("API.getBulkRequest", urls=urls)
        if not isinstance(replies, list) or len(replies) != len(requests):
            raise MatomoError("Matomo's reply to a bulk request is malformed")
        return [_outcome(one.method, reply) for one, reply in zip(requests, replies, strict=True)]

    async def change(self, method: str, **parameters: Value) -> Any:
        """Have a method change something, once. Even one that is refused may have been done in part."""
        return await self._call(Request(method, parameters))

    async def open_report(self, request: Request, most_bytes: int) -> "OpenReport":
        """Ask for a report, and look at its beginning; the caller closes what is returned.

        An error of Matomo's is raised here, as far as the beginning of a reply tells it: a short reply is
        looked at whole.
        """
        report = OpenReport(request.method, self._config.timeout_s, most_bytes)
        try:
            await report.begin(self._send(request))
        except BaseException:
            await report.close()
            raise
        return report

    async def _call(self, request: Request) -> Any:
        async with self._reply(request) as reply:
            content = bytearray()
            async for part in reply.aiter_raw():
                content += part
                if len(content) > self._config.max_bytes:
                    raise MatomoError(f"Matomo's reply to {request.method} is too large")
        return _value(request.method, reply.status_code, bytes(content))

    @asynccontextmanager
    async def _reply(self, request: Request) -> AsyncIterator[httpx.Response]:
        """Send a request; the reply is JSON, whatever it says. The time limit is of the whole block."""
        with _told(request.method):
            async with asyncio.timeout(self._config.timeout_s), self._send(request) as reply:
                _require_json(request.method, reply)
                yield reply

    def _send(self, request: Request) -> AbstractAsyncContextManager[httpx.Response]:
        body = _urlencoded(
            {
                **request.parameters,
                "module": "API",
                "method": request.method,
                "format": _JSON,
                "token_auth": self._token,
            }
        )
        return self._http.stream("POST", self._url, content=body, headers=_FORM)


class OpenReport:
    """A report on its way from Matomo. One task at a time reads it; `close` ends the request in any state.

    The time limit is of the time that we wait for Matomo: a slow reader does not use it up.

    Attributes:
        beginning: its first bytes, at most `AHEAD_BYTES` and one part more.
        is_whole: whether that is all of it; then it is JSON and no error.
    """

    def __init__(self, method: str, timeout_s: float, most_bytes: int) -> None:
        self.beginning = b""
        self.is_whole = False
        self._method = method
        self._left_s = timeout_s
        self._most_bytes = most_bytes
        self._bytes = 0
        self._last = b""
        self._closing = AsyncExitStack()
        self._parts: AsyncGenerator[bytes] | None = None  # before there is a reply

    async def begin(self, sent: AbstractAsyncContextManager[httpx.Response]) -> None:
        """Send the request, and read the beginning of its reply. Raises MatomoError."""
        reply = await self._in_time(self._closing.enter_async_context(sent))
        _require_json(self._method, reply)
        declared = reply.headers.get("Content-Length", "")
        if declared.isdecimal() and int(declared) > self._most_bytes:
            raise self._too_large()
        self._parts = _generator(reply.aiter_raw())
        self._closing.push_async_callback(self._parts.aclose)
        beginning = bytearray()
        while not self.is_whole and self._bytes <= AHEAD_BYTES:
            part = await self._next()
            self.is_whole = not part
            beginning += part
        self.beginning = bytes(beginning)
        if self.is_whole:
            _value(self._method, reply.status_code, self.beginning)
        elif reply.status_code != 200 or not _REPORT.match(self.beginning):
            raise _bad_status(self._method, reply.status_code)

    async def rest(self) -> AsyncIterator[bytes]:
        """What follows the beginning, in parts as they come.

        Raises:
            MatomoError: the reply breaks off, is not JSON to its end, is too long, or takes too long.
        """
        while part := await self._next():
            yield part
        if not self._last.rstrip().endswith((b"]", b"}")):
            raise MatomoError("Matomo did not complete the report", log_text=f"{self._method}: no end")

    async def close(self) -> None:
        """End the request; Matomo sees the connection close when the report is not read to its end."""
        await self._closing.aclose()

    async def _next(self) -> bytes:
        """The next part, never longer than one read of the socket; empty at the end."""
        assert self._parts is not None, "a report is read after it has begun"
        part = await self._in_time(anext(self._parts, b""))
        self._bytes += len(part)
        if self._bytes > self._most_bytes:
            raise self._too_large()
        if part:
            self._last = (self._last + part)[-_END_BYTES:]
        return part

    async def _in_time(self, work: Awaitable[_T]) -> _T:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        with _told(self._method):
            async with asyncio.timeout(self._left_s):
                done = await work
        self._left_s -= loop.time() - began_s
        return done

    def _too_large(self) -> MatomoError:
        return MatomoError(f"the report is over {self._most_bytes} bytes")


@contextmanager
def _told(method: str) -> Iterator[None]:
    """Raise a MatomoError for what keeps a request from its reply."""
    try:
        yield
    except httpx.TimeoutException as error:
        raise _late(is_sent=not isinstance(error, _UNSENT)) from error
    except TimeoutError:
        raise _late() from None
    except httpx.HTTPError as error:
        raise MatomoError(
            "Matomo cannot be reached",
            log_text=f"{method}: {error!r}",
            is_passing=True,
            is_going_on=not isinstance(error, _UNSENT),
        ) from error


def _require_json(method: str, reply: httpx.Response) -> None:
    """Raise what a reply that is no JSON tells."""
    status = reply.status_code
    if reply.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise MatomoError(
            "Matomo compressed its reply, which the request did not allow", log_text=f"{method}: {status}"
        )
    if reply.headers.get("Content-Type", "").partition(";")[0].strip().lower() == "application/json":
        return
    if status == 401:
        raise MatomoError(
            "Matomo does not accept the token", log_text=f"{method}: 401", is_refused_token=True
        )
    if 300 <= status < 400:
        raise MatomoError(
            "Matomo redirects; configure the URL that it redirects to", log_text=f"{method}: {status}"
        )
    raise _bad_status(method, status)


def _bad_status(method: str, status: int) -> MatomoError:
    return MatomoError(
        "Matomo's reply is malformed", log_text=f"{method}: {status}", is_passing=status >= 500
    )


def _late(*, is_sent: bool = True) -> MatomoError:
    # Not tried again once it was sent: who waits has waited long enough, and Matomo has enough to do.
    return MatomoError(
        "Matomo did not reply in time", is_late=True, is_passing=not is_sent, is_going_on=is_sent
    )


def _value(method: str, status: int, content: bytes) -> Any:
    """What the JSON of a whole reply says. Raises MatomoError for an error."""
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError:
        raise _bad_status(method, status) from None
    outcome = _outcome(method, value)
    if isinstance(outcome, MatomoError):
        raise outcome
    if status != 200:
        raise _bad_status(method, status)
    return outcome


def _outcome(method: str, value: Any) -> Any:
    """A reply's value; for an error of Matomo's a `MatomoError`, which is returned."""
    if not isinstance(value, dict):
        return value
    if value.get("result") == "error":
        return refused_by_matomo(method, str(value.get("message", "")))
    return value["value"] if value.keys() == {"value"} else value


def _generator(parts: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """What httpx declares more widely than it is."""
    assert isinstance(parts, AsyncGenerator), "httpx reads a reply by a generator"
    return parts


def _urlencoded(parameters: Mapping[str, Value]) -> str:
    """A form as PHP reads it: lists and objects by names in brackets."""
    return "&".join(
        f"{quote_plus(name, safe='[]')}={quote_plus(text)}"
        for key, value in parameters.items()
        for name, text in _flat(key, value)
    )


def _flat(name: str, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, Mapping):
        members = list(value.items())
    elif isinstance(value, str | int):
        return [(name, str(value))]
    else:
        members = list(enumerate(value))
    return [pair for key, member in members for pair in _flat(f"{name}[{key}]", member)]
