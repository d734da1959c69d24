"""Reads a request in the one form in which most of them come from the ingress, without a parser of HTTP.

HAProxy has read each request and writes its head anew: in one piece, one line for each header, names in lower
case, one space behind the colon (`proto h1`, without `h1-case-adjust`). A plain request is a GET in this form
whose headers say nothing of a body, of its connection or of what its sender has already. Everything else is
for the server's parser: a form that is not quite this one costs time and changes no answer.

Only a head that names the secret of the ingress (`broker.rest.callers`) may be believed: nobody else's has
been read before.
"""

from typing import NamedTuple

_MOST_BYTES = 8_192
_BEGIN = b"GET /"
_VERSION = b" HTTP/1.1"
_LINE = b"\r\n"
_END = _LINE + _LINE
_BETWEEN = b": "
_MORE = frozenset(
    {
        b"connection", b"content-length", b"expect", b"if-none-match", b"transfer-encoding", b"upgrade",
    }
)  # fmt: skip


class PlainHead(NamedTuple):
    """The target of a GET as it was written, and its headers by name."""

    target: bytes
    headers: dict[bytes, bytes]


def read_plain_head(data: bytes) -> PlainHead | None:
    """A whole plain request; None for anything else."""
    if len(data) > _MOST_BYTES or not data.startswith(_BEGIN) or not data.endswith(_END):
        return None
    first, *lines = data[: -len(_END)].split(_LINE)
    if not first.endswith(_VERSION):
        return None
    headers = {}
    for line in lines:
        name, between, value = line.partition(_BETWEEN)
        if not between:  # also of a second request behind the first
            return None
        headers[name] = value
    if len(headers) < len(lines) or not _MORE.isdisjoint(headers) or not b"".join(headers).islower():
        return None
    return PlainHead(first[len(_BEGIN) - 1 : -len(_VERSION)], headers)
