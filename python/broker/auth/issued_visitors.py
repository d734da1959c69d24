"""Visitors that the broker hands out: short tokens that carry all there is to know of them. Pure.

A token is a random id and the time at which it ends, authenticated under a secret of the account
(HMAC-SHA-256, cut to 128 bits). Nothing is stored of a visitor, so nothing grows with their number.
"""

import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from typing import NamedTuple

from broker.auth.signed_visitors import NotSigned

LIFETIME_S = 30 * 86_400
_VERSION = b"\x01"
_ID_BYTES = 12
_TIME_BYTES = 4
_MAC_BYTES = 16
_BODY_BYTES = len(_VERSION) + _TIME_BYTES + _ID_BYTES
_CHARACTERS = (_BODY_BYTES + _MAC_BYTES) * 4 // 3  # without padding: it is a multiple of 3


class Issued(NamedTuple):
    """A visitor as handed out, and when that ends, in seconds since 1970."""

    token: str
    expires_s: int


def issue(secret: bytes, account: str, now_ms: int, visitor: bytes | None = None) -> Issued:
    """A new visitor, or `visitor` for longer."""
    expires_s = now_ms // 1_000 + LIFETIME_S
    body = _VERSION + expires_s.to_bytes(_TIME_BYTES, "big") + (visitor or secrets.token_bytes(_ID_BYTES))
    return Issued(urlsafe_b64encode(body + _mac(secret, account, body)).decode(), expires_s)


def read(token: str, secret: bytes | None, account: str, now_ms: int) -> bytes:
    """Which visitor a token is of. Raises NotSigned."""
    raw = _decoded(token)
    body, mac = raw[:_BODY_BYTES], raw[_BODY_BYTES:]
    if secret is None or body[:1] != _VERSION or not hmac.compare_digest(mac, _mac(secret, account, body)):
        raise NotSigned("must be a visitor id that the broker issued for this account")
    if now_ms >= 1_000 * int.from_bytes(body[1 : 1 + _TIME_BYTES], "big"):
        raise NotSigned("must be a visitor id that has not expired")
    return body[1 + _TIME_BYTES :]


def _decoded(token: str) -> bytes:
    """The bytes of a token; none where it is not written as `issue` writes it."""
    if len(token) != _CHARACTERS or not token.isascii():
        return b""
    try:
        return urlsafe_b64decode(token) if set("+/").isdisjoint(token) else b""
    except (NotBase64, ValueError):
        return b""


def _mac(secret: bytes, account: str, body: bytes) -> bytes:
    return hmac.digest(secret, b"visitor\0" + account.encode() + b"\0" + body, "sha256")[:_MAC_BYTES]
