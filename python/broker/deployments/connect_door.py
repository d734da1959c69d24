"""`GET /api/v1/connect` from the ingress to the gateway of its node, past the API.

After a failover everybody asks for a gateway within the same seconds. A replica of the API takes 133 us for
such a request, and publishing waits behind it. Here native code answers at a socket file in the directory of
the ingress, which only we may open, on a thread of its own (`native/gateway/src/connects.rs`).

The ingress sends there what needs nothing but the table of gateways (`ingress`): this path and method, no
token, at most one well-formed `programId`. Everything else goes to the API, and so do these requests while no
gateway answers. Both ways answer alike: the advice is made by the same code, and the headers and all other
responses are given from here (`tests/deployments/test_connect_door.py`).

Access log and metrics are those of the API, under the gateway's process: responses are noted in native code
and written ten times a second. Over 30,000 in that time are counted and not logged, which a warning says.
"""

import asyncio
import logging
from http import HTTPStatus
from pathlib import Path

import orjson

from broker.clock import Clock
from broker.concurrency.tasks import run_once
from broker.deployments.ingress import CONNECT
from broker.deployments.private_paths import require_private
from broker.errors import BrokerError, InsufficientScope
from broker.gateway.gateway import Gateway
from broker.metrics.counts import HTTP_RESPONSES, OPERATION_SECONDS, OPERATIONS
from broker.operations.known_gateways import KnownGateways
from broker.resources.connect import NAME, ROUTE
from broker.rest.access_log import AccessLog, LoggedRequest
from broker.rest.callers import HEADER, REFUSAL
from broker.rest.headers import EVERY_REPLY, RawHeader
from broker.rest.request import JSON_TYPE, MALFORMED
from broker.storage.accounts import unknown_account

_WRITE_S = 0.1
_JSON: RawHeader = (b"content-type", JSON_TYPE.encode())
_NO_STORE: RawHeader = (b"cache-control", b"no-store")
_CLOSE: RawHeader = (b"connection", b"close")

_log = logging.getLogger(__name__)


class ConnectDoor:
    """The requests that one gateway answers. Belongs to the gateway's event loop."""

    def __init__(self, gateway: Gateway, known: KnownGateways, clock: Clock, ingress_key: str) -> None:
        """Nothing is opened yet. `ingress_key` is the secret of the ingress."""
        self._server = gateway.lend_server(self._answered)
        self._known = known
        self._key = ingress_key
        self._access_log = AccessLog(clock)
        self._timer: asyncio.TimerHandle | None = None
        self._refresh: asyncio.Task[None] | None = None

    def open(self, path: Path) -> None:
        """Answer at `path`, in the place of a gateway before this one.

        Raises:
            OSError: the file cannot be made.
            SetupError: another user could put a file of theirs in its place, and answer for us.
        """
        path.parent.mkdir(mode=0o700, exist_ok=True)
        require_private(path.parent.resolve(), "the directory of the ingress")
        self._server.answer_connects(
            path,
            self._known.directory,
            header=HEADER,
            key=self._key,
            replies=[
                (200, _head(200), b""),
                *map(_error, (unknown_account(), InsufficientScope(REFUSAL))),
                _error(MALFORMED, _CLOSE),  # nothing can be read behind it
            ],
        )

    async def close(self) -> None:
        """Answer no more, and log what was answered. Idempotent."""
        await asyncio.to_thread(self._server.stop_connects)
        if self._timer is not None:
            self._timer.cancel()
        if self._refresh is not None:
            self._refresh.cancel()
            await asyncio.wait([self._refresh])
        self._write()
        self._access_log.flush()

    def _answered(self) -> None:
        """Native code has answered something; it says so once until that has been taken."""
        self._timer = asyncio.get_running_loop().call_later(_WRITE_S, self._write)
        if self._refresh is None or self._refresh.done():
            self._refresh = run_once("gateways for connect", self._known.refresh())

    def _write(self) -> None:
        self._timer = None
        noted, missing = self._server.take_connects()
        for wall_ms, request_id, address, host, status, duration_us, body_bytes in noted:
            duration_s = duration_us / 1e6
            self._access_log.add(
                LoggedRequest(
                    now_ms=wall_ms,
                    request_id=request_id,
                    address=address,
                    method=ROUTE.method,
                    host=host,
                    path=CONNECT,
                    status=status,
                    duration_s=duration_s,
                    sent_bytes=body_bytes,
                )
            )
            HTTP_RESPONSES.add(f"{status // 100}xx")
            if status == HTTPStatus.OK:
                OPERATIONS.add(NAME, "ok")
                OPERATION_SECONDS.observe(duration_s, NAME)
        if missing:
            HTTP_RESPONSES.add("2xx", amount=missing)
            OPERATIONS.add(NAME, "ok", amount=missing)
            _log.warning("access_log_incomplete", extra={"missing": missing})


def _head(status: int, *headers: RawHeader) -> bytes:
    lines = b"".join(b"%b: %b\r\n" % header for header in (_JSON, _NO_STORE, *headers, *EVERY_REPLY))
    return b"HTTP/1.1 %d %b\r\n%b" % (status, HTTPStatus(status).phrase.encode(), lines)


def _error(error: BrokerError, *headers: RawHeader) -> tuple[int, bytes, bytes]:
    return error.status, _head(error.status, *headers), orjson.dumps(error.body())
