"""Entity tags: they guard a change against a concurrent one."""

import hashlib

from broker.errors import PreconditionFailed
from broker.operations.results import Json


def etag_of(body: bytes) -> str:
    """The strong entity tag of a representation (RFC 9110, section 8.8.3)."""
    return f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'


def tagged(body: bytes) -> Json:
    """A resource that a client may keep, as long as it asks each time whether it is still so."""
    return Json(body, {"ETag": etag_of(body), "Cache-Control": "private, no-cache"})


def require_match(if_match: str | None, etag: str) -> None:
    """Raise PreconditionFailed unless `If-Match` (RFC 9110, 13.1.1) is absent, `*` or names `etag`."""
    if if_match is None:
        return
    wanted = [tag.strip() for tag in if_match.split(",")]
    if wanted != ["*"] and etag not in wanted:
        raise PreconditionFailed("the resource has changed; read it again")
