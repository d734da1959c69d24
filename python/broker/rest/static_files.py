"""Serves the static files that `make build` creates."""

import gzip
import hashlib
import mimetypes
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from broker.errors import NotFound
from broker.rest.headers import RawHeader
from broker.rest.reply import Exchange
from broker.rest.request import Headers, takes_coding

_HASHED = re.compile(r"-[A-Z0-9]{8}\.[a-z0-9.]+$")
"""How the bundler names a file by what is in it."""
_FOREVER = b"public, max-age=31536000, immutable"
_ASK = b"no-cache"  # kept, and asked for by ETag each time: a page must not outlive an upgrade
_COMPRESSED = ("text/", "application/json", "application/javascript", "image/svg+xml")
_TYPES = {".js": "text/javascript; charset=utf-8", ".mjs": "text/javascript; charset=utf-8"}


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes
    compressed: bytes | None
    media_type: str
    etag: str
    cache: bytes


class StaticFiles:
    """The files of one folder, read once, when the first of them is asked for.

    A path is looked up among the files that were found, so none leads out of the folder. A folder's own path
    is that of its `index.html`. Text is sent compressed to clients that take gzip.
    """

    def __init__(self, folder: Path, headers: Mapping[str, str]) -> None:
        """Args: headers: sent with each file; the Content-Security-Policy at least."""
        self._folder = folder
        self._headers: tuple[RawHeader, ...] = tuple(
            (name.lower().encode(), value.encode()) for name, value in headers.items()
        )

    async def serve(self, path: str, headers: Headers, exchange: Exchange) -> None:
        """Send the file at a path below the folder.

        Raises:
            NotFound: there is none.
        """
        file = self._files.get(path.strip("/"))
        if file is None:
            raise NotFound("there is nothing at this path")
        body, etag = file.body, file.etag
        extra = [*self._headers, (b"cache-control", file.cache)]
        if file.compressed is not None:
            extra.append((b"vary", b"accept-encoding"))
            if takes_coding(headers, "gzip"):
                body, etag = file.compressed, f'{etag[:-1]}-gzip"'
                extra.append((b"content-encoding", b"gzip"))
        await exchange.representation(body, file.media_type, etag, extra)

    @cached_property
    def _files(self) -> dict[str, _File]:
        found = dict[str, _File]()
        for path in sorted(self._folder.rglob("*")):
            if path.is_file():
                name = path.relative_to(self._folder).as_posix()
                found[name] = file = _read(path)
                if path.name == "index.html":
                    found[name.removesuffix("index.html").rstrip("/")] = file
        return found


def _read(path: Path) -> _File:
    body = path.read_bytes()
    guessed = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    media_type = _TYPES.get(path.suffix) or guessed
    if media_type == "text/html":
        media_type += "; charset=utf-8"
    is_text = media_type.startswith(_COMPRESSED)
    compressed = gzip.compress(body, 9, mtime=0) if is_text else None
    if compressed is not None and len(compressed) >= len(body):
        compressed = None
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    return _File(body, compressed, media_type, etag, _FOREVER if _HASHED.search(path.name) else _ASK)
