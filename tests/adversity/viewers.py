"""Hundreds of viewers in one process: raw WebSocket connections that come back and recover by cursor.

The SDK would be the same in kind and dear in number, so these speak just enough of the protocol: a handshake,
`subscribe` with `since`, frames without compression, pongs. Each keeps what it was told, in the order of
arrival, and the pauses in which it was told nothing.

Run as a program with a JSON object as its argument; a line of JSON on standard input names the seq that each
program has reached, and when all viewers have seen it, or the patience is over, the logs are written.
"""

import asyncio
import base64
import os
import random
import sys
import time
from array import array
from pathlib import Path
from typing import Any

import orjson

from tests.adversity.judge import Push, short_id

PAUSE_S = 0.05  # shorter ones are no pause
_PATIENCE_S = 120.0
_BACK_S = (0.02, 0.2)  # before a new connection
_HANDSHAKE_S = 5.0
_SILENCE_S = 40.0  # the gateway pings every 25 s


class Viewer(asyncio.Protocol):
    """One viewer of one program; `asyncio.Protocol` of its present connection."""

    def __init__(self, port: int, program_id: str, epoch: str) -> None:
        self.program_id = program_id
        self.told: array[int] = array("Q")  # seq and short id by turns
        self.pauses: list[tuple[float, float]] = []
        self.connections = 0
        self.notes: list[str] = []
        self._port = port
        self._epoch, self.seq = epoch, 0
        self._last_s = self._heard_s = 0.0
        self._buffer = bytearray()
        self._is_open = False
        self._lost = asyncio.Event()
        self._transport: asyncio.Transport | None = None

    async def follow(self) -> None:
        """Connect, and again whenever the connection ends, until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                self._lost.clear()
                try:
                    async with asyncio.timeout(_HANDSHAKE_S):
                        await loop.create_connection(lambda: self, "127.0.0.1", self._port)
                except (OSError, TimeoutError):
                    pass
                else:
                    await self._stay()
                await asyncio.sleep(random.uniform(*_BACK_S))
        finally:
            if self._transport is not None:
                self._transport.abort()

    async def _stay(self) -> None:
        """Until the connection ends or has been silent for too long."""
        while not self._lost.is_set():
            before_s = time.monotonic()
            try:
                async with asyncio.timeout(_SILENCE_S if self._is_open else _HANDSHAKE_S):
                    await self._lost.wait()
            except TimeoutError:
                if not self._is_open or self._heard_s < before_s:
                    assert self._transport is not None
                    self._transport.abort()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._buffer.clear()
        self._is_open = False
        self._heard_s = time.monotonic()
        self.connections += 1
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [
            "GET /api/v1/ws HTTP/1.1",
            f"Host: localhost:{self._port}",
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            f"Sec-WebSocket-Key: {key}",
            "\r\n",
        ]
        transport.write("\r\n".join(lines).encode())
        params = {"programId": self.program_id, "since": {"epoch": self._epoch, "seq": self.seq}}
        self._send(0x1, orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": "subscribe", "params": params}))

    def data_received(self, data: bytes) -> None:
        self._heard_s = time.monotonic()
        self._buffer += data
        if not self._is_open:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            status = bytes(self._buffer[: self._buffer.find(b"\r\n")])
            if b" 101 " not in status:
                self._note(status.decode())
                self._close()
                return
            del self._buffer[: end + 4]
            self._is_open = True
        self._take_frames()

    def connection_lost(self, error: Exception | None) -> None:
        self._lost.set()

    # -- frames (RFC 6455, section 5.2)

    def _take_frames(self) -> None:
        buffer, place = self._buffer, 0
        while len(buffer) - place >= 2:
            size, start = buffer[place + 1], place + 2
            if size > 125:
                start += 2 if size == 126 else 8
                size = int.from_bytes(buffer[place + 2 : start])
            if len(buffer) < start + size:
                break
            opcode = buffer[place]
            payload = bytes(buffer[start : start + size])
            place = start + size
            if opcode == 0x81:
                self._take(orjson.loads(payload))
            elif opcode == 0x89:
                self._send(0xA, payload)
            elif opcode == 0x88:
                self._close()
            else:
                self._note(f"opcode {opcode:#x}")
                self._close()
        del buffer[:place]

    def _send(self, opcode: int, payload: bytes) -> None:
        assert self._transport is not None
        size = len(payload)
        head = bytes([0x80 | opcode, 0x80 | size]) if size < 126 else bytes([0x80 | opcode, 0xFE])
        if size > 125:
            head += size.to_bytes(2)
        self._transport.write(head + bytes(4) + payload)  # a mask of zeros changes nothing

    # -- messages

    def _take(self, message: dict[str, Any]) -> None:
        method = message.get("method")
        if method in ("event", "eventUpdated", "eventDeleted"):
            self._tell(message["params"])
        elif method == "reconnect":
            assert self._transport is not None
            delay_s = message["params"]["afterMs"] / 1000
            asyncio.get_running_loop().call_later(delay_s, self._transport.close)
        elif "result" in message:
            self._subscribed(message["result"])
        else:
            error = message.get("error", {})
            if error.get("code") not in (429, 503):
                self._note(orjson.dumps(message).decode()[:300])
            self._close()

    def _subscribed(self, result: dict[str, Any]) -> None:
        if not result["recovered"]:
            self._note(f"not recovered from {self.seq} of {self._epoch}")
        for params in result["events"]:
            self._tell(params)
        self._epoch = result["epoch"]

    def _tell(self, params: dict[str, Any]) -> None:
        now_s = self._heard_s
        if now_s - self._last_s > PAUSE_S and self._last_s:
            self.pauses.append((self._last_s, now_s))
        self._last_s = now_s
        self.seq = params["seq"]
        self.told.extend((self.seq, short_id(params["id"])))

    def _note(self, text: str) -> None:
        if len(self.notes) < 10:
            self.notes.append(text)

    def _close(self) -> None:
        assert self._transport is not None
        self._transport.close()

    # -- the log

    def write(self, path: Path) -> None:
        """One line of JSON, then the pushes as pairs of 64-bit numbers of this machine."""
        head = {
            "program": self.program_id,
            "connections": self.connections,
            "pauses": self.pauses,
            "notes": self.notes,
        }
        path.write_bytes(orjson.dumps(head) + b"\n" + self.told.tobytes())


def read_log(path: Path) -> tuple[dict[str, Any], list[Push]]:
    """What `Viewer.write` wrote."""
    head, _, body = path.read_bytes().partition(b"\n")
    told = array("Q", body)
    return orjson.loads(head), [Push(*pair) for pair in zip(told[::2], told[1::2], strict=True)]


async def _watch(spec: dict[str, Any]) -> None:
    epochs = list(spec["epochs"].items())
    viewers = [Viewer(spec["port"], *epochs[n % len(epochs)]) for n in range(spec["viewers"])]
    tasks = [asyncio.create_task(viewer.follow()) for viewer in viewers]
    until = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
    while not until.done():
        _say(viewers)
        await asyncio.wait([until], timeout=1)
    goal = orjson.loads(until.result() or "{}")
    deadline_s = time.monotonic() + _PATIENCE_S
    while any(v.seq < goal.get(v.program_id, 0) for v in viewers) and time.monotonic() < deadline_s:
        _say(viewers)
        await asyncio.sleep(0.1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for number, viewer in enumerate(viewers, spec["first"]):
        viewer.write(Path(spec["directory"]) / f"viewer-{number}.log")


def _say(viewers: list[Viewer]) -> None:
    seen = sum(len(viewer.told) for viewer in viewers) // 2
    connected = sum(viewer.connections for viewer in viewers)
    behind = min(viewer.seq for viewer in viewers)
    line = orjson.dumps({"deliveries": seen, "connections": connected, "behind": behind})
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    asyncio.run(_watch(orjson.loads(sys.argv[1])))
