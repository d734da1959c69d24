"""Matomo's HTTP API, as far as it is needed: reads, changes, and reports.

How Matomo 5 answers decides how its answers are read:

* An error comes as HTTP 200 with `{"result": "error", "message": …}`, missing rights as 401 with the same, a
  token that is not accepted as 401 with a page, an outage as 500 with a page. What is no JSON is no answer.
* A call of several methods (`API.getBulkRequest`) answers a list, in which each can be an error.
* Numbers come as numbers or as texts, empty objects as lists, plain values as `{"value": …}`.
* What stands in the URL's query wins over the body, so the URL has none: everything is in the body, the token
  too, which is thus in no log of a server in between.

Reads are tried again where that may help. A change is sent once: when no answer comes, Matomo may have done
it, and the error says so. Redirects are not followed, because the token would go along.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus

import httpx
import orjson

from broker.analytics.errors import MatomoError, refusal

Value = str | int | Sequence[Any]

_JSON = "json"
_FORM = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
_RETRY_S = (0.2, 0.6)  # before each further try of a read
_CHUNK_BYTES = 64 << 10
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


@dataclass(frozen=True, slots=True)
class MatomoConfig:
    """Bounds of one process.

    Attributes:
        timeout_s: of one request, from its beginning to the last byte of its reply.
        connect_s: of that, for the connection.
        max_bytes: of a reply that is no report.
        connections: to all Matomos together.
    """

    timeout_s: float = 30.0
    connect_s: float = 5.0
    max_bytes: int = 16 << 20
    connections: int = 20


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
        for pause_s in (*_RETRY_S, None):
            try:
                return await self._call(Request(method, parameters))
            except MatomoError as error:
                if pause_s is None or not error.is_passing:
                    raise
                await asyncio.sleep(pause_s * (0.5 + random.random()))  # noqa: S311 - only spreads retries
        raise AssertionError("the last try returns or raises")

    async def read_all(self, *requests: Request) -> list[Any]:
        """What several methods that change nothing answer; a `MatomoError` stands for one that failed."""
        urls = [_urlencoded({"method": one.method, **one.parameters}) for one in requests]
        replies = await self.read("API.getBulkRequest", urls=urls)
        if not isinstance(replies, list) or len(replies) != len(requests):
            raise MatomoError("Matomo answers a call of several methods with something else")
        return [_outcome(one.method, reply) for one, reply in zip(requests, replies, strict=True)]

    async def change(self, method: str, **parameters: Value) -> Any:
        """Have a method change something, once. Even one that is refused may have been done in part."""
        return await self._call(Request(method, parameters))

    @asynccontextmanager
    async def report(self, request: Request) -> AsyncIterator[AsyncIterator[bytes]]:
        """The JSON of a report in parts, as they come.

        An error of Matomo is raised before the first part, as it is much shorter than one. A reply that ends
        early or takes too long raises from the iterator.
        """
        async with self._reply(request) as reply:
            parts = reply.aiter_bytes(_CHUNK_BYTES)
            first = await _first(parts)
            if len(first) < _CHUNK_BYTES:
                _value(request.method, reply.status_code, first)
            elif reply.status_code != 200:
                raise _bad_status(request.method, reply.status_code)

            async def all_parts() -> AsyncIterator[bytes]:
                yield first
                async for part in parts:
                    yield part

            yield all_parts()

    async def _call(self, request: Request) -> Any:
        async with self._reply(request) as reply:
            content = bytearray()
            async for part in reply.aiter_bytes(_CHUNK_BYTES):
                content += part
                if len(content) > self._config.max_bytes:
                    raise MatomoError(f"Matomo answers {request.method} with too many bytes")
        return _value(request.method, reply.status_code, bytes(content))

    @asynccontextmanager
    async def _reply(self, request: Request) -> AsyncIterator[httpx.Response]:
        """Send a request; the reply is JSON, whatever it says. The time limit is of the whole block."""
        body = _urlencoded(
            {
                **request.parameters,
                "module": "API",
                "method": request.method,
                "format": _JSON,
                "token_auth": self._token,
            }
        )
        timeout = asyncio.timeout(self._config.timeout_s)
        try:
            async with timeout, self._http.stream("POST", self._url, content=body, headers=_FORM) as reply:
                _require_json(request.method, reply)
                yield reply
        except TimeoutError:
            if not timeout.expired():
                raise
            raise _late() from None
        except httpx.TimeoutException as error:
            raise _late(is_sent=not isinstance(error, _UNSENT)) from error
        except httpx.HTTPError as error:
            raise MatomoError(
                "Matomo cannot be reached",
                log_text=f"{request.method}: {error!r}",
                is_passing=True,
                is_going_on=not isinstance(error, _UNSENT),
            ) from error


def _require_json(method: str, reply: httpx.Response) -> None:
    """Raise what a reply that is no JSON tells."""
    status = reply.status_code
    if reply.headers.get("Content-Type", "").partition(";")[0].strip().lower() == "application/json":
        return
    if status == 401:
        raise MatomoError(
            "Matomo does not accept the token", log_text=f"{method}: 401", is_refused_token=True
        )
    if 300 <= status < 400:
        raise MatomoError(
            "Matomo redirects; the URL must be the one that it is at", log_text=f"{method}: {status}"
        )
    raise _bad_status(method, status)


def _bad_status(method: str, status: int) -> MatomoError:
    return MatomoError(
        "Matomo does not answer as it should", log_text=f"{method}: {status}", is_passing=status >= 500
    )


def _late(*, is_sent: bool = True) -> MatomoError:
    # Not tried again once it was sent: who waits has waited long enough, and Matomo has enough to do.
    return MatomoError(
        "Matomo does not answer in time", is_late=True, is_passing=not is_sent, is_going_on=is_sent
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
        return refusal(method, str(value.get("message", "")))
    return value["value"] if value.keys() == {"value"} else value


async def _first(parts: AsyncIterator[bytes]) -> bytes:
    """The beginning of a reply, as much as tells an error; or all of it."""
    content = b""
    while len(content) < _CHUNK_BYTES:
        part = await anext(parts, b"")
        if not part:
            break
        content += part
    return content


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
