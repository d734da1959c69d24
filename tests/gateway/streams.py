"""A client of event streams that knows nothing but bytes."""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlencode

import orjson

WAIT_S = 10.0


@dataclass(frozen=True)
class StreamEvent:
    """One event of a stream; `id` is None where it had no such line."""

    name: str
    data: dict[str, Any]
    id: str | None
    retry_ms: int | None


class Stream:
    """A request for a stream and what came of it; `status` and `headers` once it is open."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.status = 0
        self.headers: dict[str, str] = {}
        self.comments = 0

    @classmethod
    async def open(
        cls,
        port: int,
        program_id: str,
        *,
        account: str = "demo",
        token: str | None = None,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        limit: int = 1 << 20,
    ) -> Self:
        """Ask for a program's stream; the answer's head has come."""
        target = f"/api/v1/programs/{quote(program_id, safe='')}/events/stream"
        if query:
            target += f"?{urlencode(query)}"
        sent = {"Host": f"{account}.localhost", **(headers or {})}
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
        stream = cls(*await asyncio.open_connection("127.0.0.1", port, limit=limit))
        stream.writer.write(f"GET {target} HTTP/1.1\r\n{lines}\r\n".encode())
        await stream._read_head()
        return stream

    async def _read_head(self) -> None:
        async with asyncio.timeout(WAIT_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        first, *rest = head.strip().split("\r\n")
        self.status = int(first.split()[1])
        self.headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in rest)}

    async def find_next(self) -> StreamEvent | None:
        """The next event; None when the stream has ended. Comments are counted and skipped."""
        while True:
            try:
                async with asyncio.timeout(WAIT_S):
                    text = (await self.reader.readuntil(b"\n\n")).decode()
            except (asyncio.IncompleteReadError, ConnectionError):
                return None
            fields = dict(line.split(": ", 1) for line in text.split("\n") if ": " in line)
            if "event" in fields:
                retry = fields.get("retry")
                return StreamEvent(
                    fields["event"],
                    orjson.loads(fields["data"]),
                    fields.get("id"),
                    None if retry is None else int(retry),
                )
            self.comments += 1

    async def next(self, name: str) -> StreamEvent:
        """The next event, which must be called so."""
        event = await self.find_next()
        assert event is not None, f"the stream has ended before {name}"
        assert event.name == name, event
        return event

    async def seqs(self, count: int) -> list[int]:
        """The seqs of the next `count` events."""
        return [(await self.next("event")).data["seq"] for _ in range(count)]

    async def refused(self) -> tuple[int, dict[str, Any]]:
        """The status and the body of a request that was refused."""
        async with asyncio.timeout(WAIT_S):
            body = await self.reader.read()
        assert self.status >= 400, self.status
        assert self.headers["content-type"] == "application/json"
        return self.status, orjson.loads(body)

    async def close(self) -> None:
        """Hang up."""
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
