"""Visitors whom an account's own server has signed: JSON Web Tokens (RFC 7519). Pure.

A key goes with one algorithm, which its kind decides and no token: a secret with HS256, a public key with
RS256, ES256 or EdDSA. So a public key is never taken for a secret, and a token without a signature is never
tried. The audience names the account and the purpose, so that a token that the same key signed for something
else is no visitor.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

LEEWAY_S = 30
MIN_SECRET_CHARACTERS = 32
MAX_SUBJECT_CHARACTERS = 128
_RSA_BITS = range(2048, 4097)  # more is slow to verify, and its signatures too long
_PEM = "-----BEGIN "
_REQUIRED = ["sub", "aud", "exp"]
_OPTIONS: Any = {"require": _REQUIRED, "verify_exp": False, "verify_nbf": False, "verify_iat": False}


class NotSigned(ValueError):
    """A text is no visitor of this account; the message says what must be."""


@dataclass(frozen=True, slots=True)
class VisitorKey:
    """A key, and the one algorithm that it is for."""

    algorithm: str
    key: Any = field(repr=False)


def read_key(text: str) -> VisitorKey:
    """A secret, or a public key as PEM. Raises ValueError, which does not show it."""
    if not text.startswith(_PEM):
        if len(text) < MIN_SECRET_CHARACTERS or not text.isascii() or not text.isprintable():
            raise ValueError(f"a secret must be {MIN_SECRET_CHARACTERS} visible ASCII characters or more")
        return VisitorKey("HS256", text)
    try:
        key = load_pem_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError("must be a public key as PEM") from None
    if isinstance(key, RSAPublicKey) and key.key_size in _RSA_BITS:
        return VisitorKey("RS256", key)
    if isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP256R1):
        return VisitorKey("ES256", key)
    if isinstance(key, Ed25519PublicKey):
        return VisitorKey("EdDSA", key)
    raise ValueError("must be an RSA key of 2,048 to 4,096 bits, a P-256 key or an Ed25519 key")


def audience_of(account: str) -> str:
    """What tokens for visitors of an account have as `aud`."""
    return f"votes:{account}"


def verify(token: str, keys: Iterable[VisitorKey], account: str, program_id: str, now_ms: int) -> str:
    """Whom a token is of, its `sub`.

    Raises:
        NotSigned: no key has signed it, it is for something else, or its time is over.
    """
    for key in keys:
        try:
            decoded = jwt.decode_complete(
                token, key.key, algorithms=[key.algorithm], audience=audience_of(account), options=_OPTIONS
            )
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            continue
        if "crit" not in decoded["header"]:
            return _subject(decoded["payload"], program_id, now_ms / 1_000)
    raise NotSigned("must be a token that the account's server has signed for votes")


def _subject(claims: Mapping[str, Any], program_id: str, now_s: float) -> str:
    expires, begins = claims["exp"], claims.get("nbf", 0)
    if not _is_time(expires) or not _is_time(begins):
        raise NotSigned("must be a token with times in seconds")
    if now_s >= expires + LEEWAY_S:
        raise NotSigned("must be a token that has not expired")
    if begins > now_s + LEEWAY_S:
        raise NotSigned("must be a token that is already valid")
    if claims.get("programId", program_id) != program_id:
        raise NotSigned("must be a token for this program")
    subject = claims["sub"]
    if isinstance(subject, str) and subject.isprintable() and 0 < len(subject) <= MAX_SUBJECT_CHARACTERS:
        return subject
    raise NotSigned(f"must be a token whose sub has 1 to {MAX_SUBJECT_CHARACTERS} printable characters")


def _is_time(value: object) -> bool:
    # A number that is not finite never expires.
    return type(value) is int or (isinstance(value, float) and math.isfinite(value))
