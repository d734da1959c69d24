"""Reads an untrusted body within bounds: bytes as sent, and bytes after decompression.

Unpacking is done in steps that each make a bounded number of bytes, so a small body that unpacks to gigabytes
is noticed at the limit and not afterwards.
"""

import zlib
from collections.abc import Callable, Iterator

from broker.fetching.errors import TooLarge, UpstreamFailed

ACCEPTED_ENCODINGS = "gzip, deflate"
_STEP_BYTES = 1 << 16
_PIECE_BYTES = 32 << 10  # a server that sends single bytes does not have an object kept for each


class BodyReader:
    """Takes one body in parts, as they come.

    Args:
        encoding: the value of `Content-Encoding`; empty for none.
        limit_bytes: that the body may have, as sent and unpacked.
        count: called with the number of bytes that are kept, before they are; raises to refuse them.
    """

    def __init__(self, encoding: str, limit_bytes: int, count: Callable[[int], None] | None = None) -> None:
        """Raises UpstreamFailed: it is packed in a way that was not asked for."""
        self._unpacker = _build_unpacker(encoding)
        self._limit_bytes = limit_bytes
        self._count = count
        self._parts: list[bytes] = []
        self._gathered = bytearray()  # too little for a part
        self._sent_bytes = self._kept_bytes = 0

    def feed(self, chunk: bytes) -> None:
        """Take what came.

        Raises:
            TooLarge: over the limit, as sent or unpacked.
            UpstreamFailed: it cannot be unpacked.
        """
        self._sent_bytes += len(chunk)
        if self._sent_bytes > self._limit_bytes:
            raise too_large(self._limit_bytes)
        for part in [chunk] if self._unpacker is None else self._unpacker.unpack(chunk):
            self._kept_bytes += len(part)
            if self._kept_bytes > self._limit_bytes:
                raise too_large(self._limit_bytes)
            if self._count is not None:
                self._count(len(part))
            self._keep(part)

    def finish(self) -> tuple[bytes, ...]:
        """The unpacked body in parts, once all of it has come. Raises UpstreamFailed: bytes are missing."""
        if self._unpacker is not None and self._unpacker.is_truncated:
            raise _broken()
        return (*self._parts, bytes(self._gathered)) if self._gathered else tuple(self._parts)

    def _keep(self, part: bytes) -> None:
        if len(part) >= _PIECE_BYTES and not self._gathered:
            self._parts.append(part)
            return
        self._gathered += part
        if len(self._gathered) >= _PIECE_BYTES:
            self._parts.append(bytes(self._gathered))
            self._gathered.clear()


def too_large(limit_bytes: int) -> TooLarge:
    """The error of a body over the limit."""
    return TooLarge(f"the upstream's reply is over {limit_bytes} bytes")


class _Unpacker:
    """gzip (RFC 1952, one member after the other) or deflate (RFC 1950, or raw as some servers send it)."""

    def __init__(self, *, is_gzip: bool) -> None:
        self._is_gzip = is_gzip
        self._stream: zlib._Decompress | None = None

    @property
    def is_truncated(self) -> bool:
        """Whether bytes are missing at the end. Nothing at all is an empty body."""
        return self._stream is not None and not self._stream.eof

    def unpack(self, chunk: bytes) -> Iterator[bytes]:
        """The unpacked parts, each bounded, made one at a time. Raises UpstreamFailed."""
        while chunk:
            if self._stream is None or self._stream.eof:
                self._stream = self._begin(chunk)
            try:
                part = self._stream.decompress(chunk, _STEP_BYTES)
            except zlib.error:
                raise _broken() from None
            if part:
                yield part
            chunk = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail
            if not part and not self._stream.eof:
                # All is taken and nothing came of it; the rest of a full step comes with the next chunk's.
                break

    def _begin(self, chunk: bytes) -> "zlib._Decompress":
        if self._is_gzip:
            return zlib.decompressobj(zlib.MAX_WBITS | 16)
        if self._stream is not None:
            raise _broken()  # something follows the one stream that deflate has
        # A zlib header has 8 in its low half (RFC 1950, section 2.2); what begins otherwise is a raw stream.
        return zlib.decompressobj(zlib.MAX_WBITS if chunk[0] & 15 == 8 else -zlib.MAX_WBITS)


def _build_unpacker(encoding: str) -> _Unpacker | None:
    match encoding.strip().lower():
        case "" | "identity":
            return None
        case "gzip" | "x-gzip":
            return _Unpacker(is_gzip=True)
        case "deflate":
            return _Unpacker(is_gzip=False)
    raise UpstreamFailed("the upstream's response has a Content-Encoding that was not requested")


def _broken() -> UpstreamFailed:
    return UpstreamFailed("the upstream's reply cannot be unpacked")
