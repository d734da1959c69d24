"""One line for each request: JSON, for machines to read.

Queries and bodies are left out: they may hold tokens and what viewers search for.
"""

import logging
from collections.abc import Mapping
from typing import Any

import orjson

from broker.rest.reply import Exchange

_log = logging.getLogger("broker.access")


def write(scope: Mapping[str, Any], exchange: Exchange, duration_s: float) -> None:
    """Log a request that has been answered; status 0 means that the client hung up first."""
    if not _log.isEnabledFor(logging.INFO):
        return
    host = next((value for name, value in scope["headers"] if name == b"host"), b"")
    fields = {
        "event": "request",
        "requestId": exchange.request_id,
        "method": scope["method"],
        "host": host.decode("latin-1"),
        "path": scope["path"],
        "status": exchange.status,
        "durationS": round(duration_s, 6),
        "sentBytes": exchange.sent_bytes,
    }
    _log.info("%s", orjson.dumps(fields, default=repr).decode())
