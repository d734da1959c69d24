"""Passes requests from uvicorn directly to the API, past Ray Serve's work per request.

Behind HAProxy a replica of Ray Serve runs uvicorn itself. Around each request Serve then makes an id and a
description of it and keeps figures of its own: a quarter of a replica's time in `python -m bench http`, POST
stored value. What Serve needs to know is how many requests run: by that it adds and removes replicas, waits
before it ends one, and holds back what is too much. So requests of the API are counted with Serve's own
counters and are the API's otherwise. uvicorn's reading of the client's address is left out: the API has its
own (`broker.rest.callers`). A request's time starts when its body is complete: one that is slow to come takes
nobody's place, and brings no second replica.

A replica may answer some requests at once, from their bytes, before uvicorn reads them (`answer_at_once`).
Uvicorn's reading, its task, and the messages of ASGI take longer than an image that is in memory.

Everything else goes Serve's way: other paths, other protocols, and whatever comes while the replica has as
many requests as it may. So does everything when Serve is not made as this expects, which the log says once.
On that way too the API alone watches and times its requests.

Names used: of a replica of Serve `_direct_ingress_asgi`, `_semaphore`, `_metrics_manager` with
`inc_num_ongoing_requests` and `dec_num_ongoing_requests`, `get_num_ongoing_requests`; `RequestMetadata` and
`RequestProtocol` of `ray.serve._private.common`, `RequestIdMiddleware` of `ray.serve._private.http_util`;
uvicorn's `AutoHTTPProtocol` with what `ImmediateProtocol` uses of it, `ProxyHeadersMiddleware` and
`RequestResponseCycle.more_body`; two headers by
which Serve watches no request.
Probe: `DirectRequests` counts one request that does not exist, when Serve starts the server of a replica.
Fall-back: everything goes Serve's way, and the log says `requests_go_through_serve`.
Gain: a quarter of a replica's time, in `python -m bench http`, POST stored value.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import lru_cache
from operator import itemgetter
from typing import Any

import orjson
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http import auto
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from broker.clock import SystemClock
from broker.deployments.ray_internals.departures import Departure
from broker.deployments.ray_internals.joined_writes import JoiningProtocol
from broker.ids import IdSource
from broker.rest.asgi import AnswerAtOnce, Send, WholeReply
from broker.rest.callers import HEADER
from broker.rest.headers import EVERY_REPLY
from broker.rest.request import MALFORMED

App = Callable[[Any, Any, Any], Awaitable[None]]
"""An ASGI application."""

API_PATHS = "/api/v1/"
"""The paths of the API begin with it."""

_SERVE = "/-/"  # what Serve answers itself; HAProxy's checks ask there, without the ingress's header
_ARRIVING = 1_000  # bodies at a time that take no place; each may be as large as a body may be
_NAME = itemgetter(0)  # of a header
_FROM_INGRESS = HEADER.encode()
# By these Serve starts neither a task that waits for the client to hang up nor a timer.
_UNWATCHED = [(b"x-request-timeout-seconds", b"0"), (b"x-request-disconnect-disabled", b"?1")]

_log = logging.getLogger(__name__)


class DirectRequests:
    """The application of a replica's uvicorn. Belongs to the event loop on which Serve and the API run."""

    def __init__(
        self,
        theirs: ProxyHeadersMiddleware,
        api: App,
        prefix: str = API_PATHS,
        at_once: AnswerAtOnce | None = None,
    ) -> None:
        """Find Serve's counters behind the application that Serve gave to uvicorn.

        Args:
            prefix: of the paths that `api` serves.
            at_once: what answers some of their requests without `api`.

        Raises:
            Exception: of any kind; Serve is not made as expected.
        """
        # Names that Serve may change, so a start must not depend on them.
        from ray.serve._private.common import RequestMetadata, RequestProtocol
        from ray.serve._private.http_util import RequestIdMiddleware

        if type(theirs) is not ProxyHeadersMiddleware or type(theirs.app) is not RequestIdMiddleware:
            raise TypeError("Serve has an unexpected middleware")
        entry: Any = theirs.app._app
        replica = entry.__self__
        if entry != replica._direct_ingress_asgi:
            raise TypeError("Serve does not take requests where expected")
        semaphore = replica._semaphore
        figures = replica._metrics_manager
        self._theirs = through_serve(theirs)
        self._is_full = semaphore.locked
        self._take_place = semaphore.acquire
        self._leave_place = semaphore.release
        self._begin = figures.inc_num_ongoing_requests
        self._end = figures.dec_num_ongoing_requests
        self._request = RequestMetadata(
            request_id="",
            internal_request_id="",
            is_streaming=True,
            is_direct_ingress=True,
            _request_protocol=RequestProtocol.HTTP,
        )
        self._check(replica.get_num_ongoing_requests)
        self._api = api
        self._prefix = prefix
        self._at_once = at_once
        self._answered = 0  # at once, in this turn of the loop
        self._arriving = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one ASGI scope."""
        if scope["type"] != "http" or not scope["path"].startswith(self._prefix) or self._is_full():
            is_asked = scope["type"] == "http" and scope["path"].startswith(_SERVE)
            app = self._api if is_asked and _is_from_ingress(scope) else self._theirs
            await app(scope, receive, send)
        elif _is_arriving(receive) and self._arriving < _ARRIVING:
            await self._serve_with_body(scope, receive, send)
        else:
            await self._take_place()  # at once, since there is one
            self._begin(self._request)
            try:
                await self._api(scope, receive, send)
            finally:
                self._end(self._request)
                self._leave_place()

    def answer_at_once(self, data: bytes) -> WholeReply | None:
        """The reply to the bytes of a request that needs no waiting; None for anything else.

        It counts as under way until the end of this turn of the event loop, as long as others of the turn
        wait for it: a replica that has too many of them is to get a second one.
        """
        reply = None if self._at_once is None or self._is_full() else self._at_once(data)
        if reply is not None:
            if not self._answered:
                asyncio.get_running_loop().call_soon(self._end_turn)
            self._answered += 1
            self._begin(self._request)
        return reply

    def _end_turn(self) -> None:
        answered, self._answered = self._answered, 0
        for _ in range(answered):
            self._end(self._request)

    async def _serve_with_body(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve a request that takes its place when its body is there, or is answered without."""
        counted = False
        self._arriving += 1

        async def receive_counted() -> Any:
            nonlocal counted
            message = await receive()
            if not counted and not message.get("more_body", False):
                await self._take_place()  # at its turn, when all are taken meanwhile
                counted = True
                self._arriving -= 1
                self._begin(self._request)
            return message

        try:
            await self._api(scope, receive_counted, send)
        finally:
            if counted:
                self._end(self._request)
                self._leave_place()
            else:
                self._arriving -= 1

    def _check(self, count: Callable[[], int]) -> None:
        """Count one request that does not exist."""
        before = count()
        if self._is_full() is not False:
            raise RuntimeError("a new replica accepts no request")
        try:
            self._take_place().send(None)
        except StopIteration:
            self._begin(self._request)
            during = count()
            self._end(self._request)
            self._leave_place()
            if (during, count()) != (before + 1, before):
                raise RuntimeError("Serve counts requests in an unexpected way") from None
        else:
            raise RuntimeError("a replica does not count a request immediately")


def _is_arriving(receive: Any) -> bool:
    """Whether some of the body is still to come: `receive` is a method of uvicorn's part in the request."""
    cycle: RequestResponseCycle = receive.__self__
    return cycle.more_body


def _is_from_ingress(scope: Any) -> bool:
    return _FROM_INGRESS in map(_NAME, scope["headers"])


def through_serve(theirs: App) -> App:
    """Serve's application, which leaves it to the API to watch and time its requests."""

    async def call(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            scope["headers"].extend(_UNWATCHED)  # after the client's own: the last one counts
        await theirs(scope, receive, send)

    return call


def without_request_id(send: Send) -> Send:
    """Leave the request's id out of a reply: Serve adds it to what it hands on."""

    async def send_rest(message: Any) -> None:
        if message["type"] == "http.response.start":
            headers = [header for header in message["headers"] if header[0] != b"x-request-id"]
            message = {**message, "headers": headers}
        await send(message)

    return send_rest


def malformed_reply(request_id: str) -> bytes:
    """A whole HTTP response to what cannot be read as a request."""
    body = orjson.dumps(MALFORMED.body())
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
        (b"connection", b"close"),
        (b"x-request-id", request_id.encode()),
        *EVERY_REPLY,
    ]
    head = b"".join(b"%b: %b\r\n" % header for header in headers)
    return b"HTTP/1.1 400 Bad Request\r\n" + head + b"\r\n" + body


def serve_directly(
    api: App, departure: Departure, prefix: str = API_PATHS, at_once: AnswerAtOnce | None = None
) -> None:
    """Let the HTTP servers that Serve starts in this process from now on hand requests of ours to `api`.

    Call it on the event loop on which `api` runs.

    Args:
        prefix, at_once: see `DirectRequests`.
    """
    loop = asyncio.get_running_loop()
    ids = IdSource(SystemClock())

    @lru_cache
    def build(theirs: Any) -> App:
        try:
            if asyncio.get_running_loop() is not loop:
                raise RuntimeError("Serve runs the API on another event loop")
            return DirectRequests(theirs, api, prefix, at_once)
        except Exception as error:  # Serve may have become anything; then requests go its way
            _log.warning("requests_go_through_serve", extra={"cause": repr(error)})
            return through_serve(theirs)

    class DirectProtocol(JoiningProtocol):
        """uvicorn's protocol in front of that application."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.app = build(self.app)
            self.departure = departure

        def send_400_response(self, msg: str) -> None:
            """Refuse what is no HTTP as the API refuses; uvicorn says it in plain text."""
            del msg
            self.transport.write(malformed_reply(ids.uuid7()))
            self.transport.close()

    class ImmediateProtocol(DirectProtocol):
        """The same where some requests are answered at once, which uvicorn then does not see."""

        is_reading = False
        """Whether a part of a request has come."""

        def data_received(self, data: bytes) -> None:
            """Answer a request, or hand it to uvicorn."""
            if not self._is_busy() and isinstance(self.app, DirectRequests):
                reply = self.app.answer_at_once(data)
                if reply is not None:
                    self.write_at_once(reply)
                    return
            super().data_received(data)

        def _is_busy(self) -> bool:
            is_answering = self.cycle is not None and not self.cycle.response_complete
            return self.is_reading or is_answering or self.flow.write_paused or self.departure.has_begun

        def on_message_begin(self) -> None:
            """Note that a request has begun."""
            self.is_reading = True
            super().on_message_begin()

        def on_message_complete(self) -> None:
            """Note that it is whole."""
            self.is_reading = False
            super().on_message_complete()

    auto.AutoHTTPProtocol = DirectProtocol if at_once is None else ImmediateProtocol
