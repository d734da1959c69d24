"""What every HTTP application does before and after its requests.

Each request has a caller, an id, a deadline, one line in the access log, and errors in their one shape. What
an application answers is its own `serve`.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

from broker.clock import Clock
from broker.errors import (
    BrokerError,
    InternalError,
    MethodNotAllowed,
    OutcomeUnknown,
    Unavailable,
    forget_frames,
)
from broker.ids import IdSource
from broker.metrics import catalogue
from broker.metrics.counts import HTTP_RESPONSES, Sample
from broker.rest.access_log import AccessLog
from broker.rest.asgi import AnswerAtOnce, Receive, Send
from broker.rest.callers import Callers, CallOrigin
from broker.rest.deadlines import Deadlines
from broker.rest.reply import Exchange
from broker.rest.request import (
    ClientGone,
    Headers,
    RequestBody,
    drain,
    has_content,
    read_headers,
    request_id_of,
)
from broker.rest.trusted_proxies import TrustedProxies
from broker.settings import Settings

# Of each hundred; 0 is a client that hung up first.
_STATUS_CLASSES = ("none", "1xx", "2xx", "3xx", "4xx", "5xx")
_NOBODY = CallOrigin("", is_operator=False)

_log = logging.getLogger(__name__)


class Door(ABC):
    """An ASGI application. Safe for any number of requests at a time on one event loop."""

    error_cache = b"no-store"
    """`Cache-Control` of errors that say something of what was asked for."""

    def __init__(
        self, settings: Settings, clock: Clock, ids: IdSource, timeout_s: float | None = None
    ) -> None:
        """Args: timeout_s: for a whole request; None takes the API's."""
        self._clock = clock
        self._ids = ids
        self._access_log = AccessLog(clock)
        self._deadlines = Deadlines(timeout_s or settings.http_timeout_s, clock)
        self._requests = 0  # that are being answered
        self._callers = Callers(settings.ingress_key, TrustedProxies(settings.trusted_proxies))

    answer_at_once: AnswerAtOnce | None = None
    """What answers the bytes of a request before `__call__` is asked, for a door that has such a thing."""

    @abstractmethod
    async def serve(
        self,
        scope: Mapping[str, Any],
        headers: Headers,
        caller: CallOrigin,
        receive: Receive,
        exchange: Exchange,
    ) -> None:
        """Answer a request; any error becomes its reply, as long as none has begun."""

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope["type"] == "http":
            await self._serve_http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await _serve_lifespan(receive, send)
        else:
            # WebSockets have a door of their own; `GET /api/v1/connect` names it.
            await receive()
            await send({"type": "websocket.close", "code": 1008})

    def close(self) -> None:
        """Write what is left of the access log."""
        self._access_log.flush()

    def figures(self) -> Iterator[Sample]:
        """What the door has under way."""
        yield Sample(catalogue.HTTP_REQUESTS.name, (), self._requests)

    async def _serve_http(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        # Describe the exchange, so that every outcome below can be answered and logged.
        clock = self._clock
        began_s = clock.monotonic_s()
        received = scope["headers"]
        headers = dict(received)
        caller = _NOBODY
        request_id = request_id_of(headers) or self._ids.uuid7()
        method = scope["method"]
        body = RequestBody(receive) if has_content(headers) else None
        if body is not None:
            receive = body.receive
        known = header_text(headers, b"if-none-match") if method in ("GET", "HEAD") else None
        exchange = Exchange(
            send,
            receive,
            request_id,
            is_head=method == "HEAD",
            if_none_match=known,
            error_cache=self.error_cache,
            began_s=began_s,
        )
        # Serve the request; an error becomes a reply unless the reply has begun.
        task = self._deadlines.begin()
        self._requests += 1
        try:
            if len(headers) < len(received) or "target_host" in scope:
                headers = read_headers(received, scope.get("target_host"))
            caller = self._callers.identify(scope, headers)
            await self.serve(scope, headers, caller, receive, exchange)
        except ClientGone:
            pass
        except asyncio.CancelledError:
            if exchange.has_begun or not self._deadlines.is_late(task):
                raise
            kind = OutcomeUnknown if exchange.has_effect else Unavailable
            await exchange.error(kind("the request took too long; try again", retry_after_s=1))
        except BrokerError as error:
            if exchange.has_begun:
                _log.warning("request_failed", extra=_failure(exchange, error))
                raise  # the server cuts the connection, so that half a document is not taken for a whole
            await self._send_error(exchange, error, headers, body)
            forget_frames(error)
        except Exception as error:
            _log.error("request_failed", extra=_failure(exchange, error), exc_info=error)
            if exchange.has_begun:
                raise
            await exchange.error(InternalError(f"an internal error; its request id is {request_id}"))
            forget_frames(error)
        finally:
            self._deadlines.end(task)
            self._requests -= 1
            HTTP_RESPONSES.add(_STATUS_CLASSES[exchange.status // 100])
            duration_s = clock.monotonic_s() - began_s
            self._access_log.write(scope, headers.get(b"host", b""), caller.address, exchange, duration_s)
            if exchange.trace is not None:
                exchange.trace.end({"http.response.status_code": exchange.status})

    async def _send_error(
        self, exchange: Exchange, error: BrokerError, headers: Headers, body: RequestBody | None
    ) -> None:
        extra = [(b"allow", ", ".join(error.allow).encode())] if isinstance(error, MethodNotAllowed) else []
        # What is refused before its body was read. Most bodies are small enough to be put aside; else the
        # connection cannot carry another request. Who is too busy to serve does not read on either.
        if body is not None and body.is_unread:
            is_busy = isinstance(error, Unavailable)
            if is_busy or not await drain(body.receive, headers):
                extra.append((b"connection", b"close"))
        await exchange.error(error, extra)


def _failure(exchange: Exchange, error: Exception) -> dict[str, str]:
    fields = {"requestId": exchange.request_id, "error": type(error).__name__}
    if exchange.trace_id is not None:
        fields["traceId"] = exchange.trace_id
    return fields


def header_text(headers: Headers, name: bytes) -> str | None:
    """The value of a header as text, or None."""
    value = headers.get(name)
    return None if value is None else value.decode("latin-1")


async def _serve_lifespan(receive: Receive, send: Send) -> None:
    """There is nothing to open or close: the services belong to who made them."""
    while (await receive())["type"] != "lifespan.shutdown":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})
