"""One line for each request: JSON, for machines to read.

Queries and bodies are left out: they may hold tokens and what viewers search for. Lines are gathered for a
moment and written together, since a write a request costs as much as a short request does; a process that is
killed takes the lines of that moment with it. They are also formatted together: one by one, between other
work, each takes twice as long.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from broker.clock import Clock
from broker.domain.values import format_ms
from broker.logs import process_fields
from broker.rest.reply import Exchange

NAME = "broker.access"

_WRITE_S = 0.1
_LINES = 1_000  # gathered at most
_CHARACTERS = 100_000  # of their paths and hosts, which strangers make as long as a head may be

_log = logging.getLogger(NAME)


class LoggedRequest(NamedTuple):
    """A request that has been answered; `status` 0 means that the client hung up first.

    `trace_id` is that of one that is traced.
    """

    now_ms: int
    request_id: str
    address: str
    method: str
    host: str
    path: str
    status: int
    duration_s: float
    sent_bytes: int
    trace_id: str | None = None


class AccessLog:
    """The log of one door. Belongs to one event loop; `flush` at the end."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._gathered: list[LoggedRequest] = []
        self._characters = 0
        self._timer: asyncio.TimerHandle | None = None
        # What each line of this process has, without the brace at its end.
        self._head = orjson.dumps({"level": "info", "logger": NAME, "event": "request"} | process_fields())[
            :-1
        ]

    def write(
        self, scope: Mapping[str, Any], host: bytes, address: str, exchange: Exchange, duration_s: float
    ) -> None:
        """Log a request."""
        self.add(
            LoggedRequest(
                self._clock.now_ms(),
                exchange.request_id,
                address,
                scope["method"],
                host.decode("latin-1"),
                scope["path"],
                exchange.status,
                duration_s,
                exchange.sent_bytes,
                exchange.trace_id,
            )
        )

    def add(self, request: LoggedRequest) -> None:
        """Log a request by what is known of it."""
        self._gathered.append(request)
        self._characters += len(request.path) + len(request.host)
        if len(self._gathered) >= _LINES or self._characters >= _CHARACTERS:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_WRITE_S, self.flush)

    def flush(self) -> None:
        """Write what was gathered."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        gathered, self._gathered, self._characters = self._gathered, [], 0
        if gathered and _log.isEnabledFor(logging.INFO):
            _log.info("%s", b"\n".join(map(self._line, gathered)).decode())

    def _line(self, request: LoggedRequest) -> bytes:
        fields = {
            "time": format_ms(request.now_ms),
            "requestId": request.request_id,
            "address": request.address,
            "method": request.method,
            "host": request.host,
            "path": request.path,
            "status": request.status,
            "durationS": round(request.duration_s, 6),
            "sentBytes": request.sent_bytes,
        }
        if request.trace_id is not None:
            fields["traceId"] = request.trace_id
        return b"%b,%b" % (self._head, orjson.dumps(fields, default=repr)[1:])
