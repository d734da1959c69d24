"""One line for each request: JSON, for machines to read.

Queries and bodies are left out: they may hold tokens and what viewers search for. Lines are gathered for a
moment and written together, since a write a request costs as much as a short request does; a process that is
killed takes the lines of that moment with it.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import orjson

from broker.clock import Clock
from broker.domain.values import format_ms
from broker.logs import process_fields
from broker.rest.reply import Exchange

NAME = "broker.access"

_WRITE_S = 0.1
_LINES = 1_000  # gathered at most

_log = logging.getLogger(NAME)


class AccessLog:
    """The log of one door. Belongs to one event loop; `flush` at the end."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lines: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        # What each line of this process has, without the brace at its end.
        self._head = orjson.dumps({"level": "info", "logger": NAME, "event": "request"} | process_fields())[
            :-1
        ]

    def write(
        self, scope: Mapping[str, Any], host: bytes, address: str, exchange: Exchange, duration_s: float
    ) -> None:
        """Log a request that has been answered; status 0 means that the client hung up first."""
        self.add(
            now_ms=self._clock.now_ms(),
            request_id=exchange.request_id,
            address=address,
            method=scope["method"],
            host=host.decode("latin-1"),
            path=scope["path"],
            status=exchange.status,
            duration_s=duration_s,
            sent_bytes=exchange.sent_bytes,
            trace_id=exchange.trace_id,
        )

    def add(
        self,
        *,
        now_ms: int,
        request_id: str,
        address: str,
        method: str,
        host: str,
        path: str,
        status: int,
        duration_s: float,
        sent_bytes: int,
        trace_id: str | None = None,
    ) -> None:
        """Log a request by what is known of it. Args: trace_id: of one that is traced."""
        if not _log.isEnabledFor(logging.INFO):
            return
        fields = {
            "time": format_ms(now_ms),
            "requestId": request_id,
            "address": address,
            "method": method,
            "host": host,
            "path": path,
            "status": status,
            "durationS": round(duration_s, 6),
            "sentBytes": sent_bytes,
        }
        if trace_id is not None:
            fields["traceId"] = trace_id
        self._lines.append(b"%b,%b" % (self._head, orjson.dumps(fields, default=repr)[1:]))
        if len(self._lines) >= _LINES:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_WRITE_S, self.flush)

    def flush(self) -> None:
        """Write what was gathered."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._lines:
            lines, self._lines = self._lines, []
            _log.info("%s", b"\n".join(lines).decode())
