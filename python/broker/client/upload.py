"""The body of an import in chunks: from a file, from bytes, or from an iterable of events."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from broker.client import wire
from broker.client.models import Event, NewEvent

_CHUNK_BYTES = 256 << 10

ImportSource = Path | bytes | Iterable[Event | NewEvent | Mapping[str, Any]]
"""An exported document as a file or as bytes, or the events themselves."""

Progress = Callable[[int], None]
"""Told how many bytes have been handed on, each time some have; called on the client's event loop."""


class Upload:
    """An import's body. A file and bytes can be sent again; an iterator's events only once."""

    def __init__(self, source: ImportSource, progress: Progress | None) -> None:
        """Raises OSError when the file cannot be read."""
        self._source = source
        self._progress = progress
        self.is_repeatable = not isinstance(source, Iterable) or isinstance(source, bytes | list | tuple)
        self.length: int | None = None
        if isinstance(source, Path):
            self.length = source.stat().st_size
        elif isinstance(source, bytes):
            self.length = len(source)

    async def open(self) -> AsyncIterator[bytes]:
        """The body, from its start."""
        sent = 0
        async for chunk in self._chunks():
            yield chunk
            sent += len(chunk)
            if self._progress is not None:
                self._progress(sent)

    def _chunks(self) -> AsyncIterator[bytes]:
        if isinstance(self._source, Path):
            return _file_chunks(self._source)
        if isinstance(self._source, bytes):
            return _bytes_chunks(self._source)
        return _event_chunks(self._source)


async def _file_chunks(path: Path) -> AsyncIterator[bytes]:
    with await asyncio.to_thread(path.open, "rb") as file:
        while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
            yield chunk


async def _bytes_chunks(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), _CHUNK_BYTES):
        yield content[start : start + _CHUNK_BYTES]


async def _event_chunks(events: Iterable[Event | NewEvent | Mapping[str, Any]]) -> AsyncIterator[bytes]:
    parts, size = [b'{"events":['], 0
    for number, event in enumerate(events):
        line = (b"," if number else b"") + wire.encode(_element(event))
        parts.append(line)
        size += len(line)
        if size >= _CHUNK_BYTES:
            yield b"".join(parts)
            parts, size = [], 0
    parts.append(b"]}")
    yield b"".join(parts)


def _element(event: Event | NewEvent | Mapping[str, Any]) -> Mapping[str, Any]:
    match event:
        case NewEvent():
            return event.body()
        case Event():
            return NewEvent(event.event, event.metadata, event.timestamp, event.timecode).body()
        case _:
            return dict(event)
