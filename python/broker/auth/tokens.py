"""Access tokens: JWTs (RFC 7519) signed with Ed25519 (RFC 8037). Pure; keys and the time are passed in.

We are the only issuer of the tokens that we accept, so everything that we would not write ourselves is
refused: other algorithms, other header fields, other types, a life longer than our own. The user's state of
credentials (`Credentials.valid_from_ms`) travels in the claim `gen`, the API token that an access token was
exchanged for in `api`.

The 30 seconds by which clocks of machines may differ are given to the times of issue. The end of a token is
not stretched: a client is told when it comes, and a connection loses its rights at that moment.
"""

from dataclasses import dataclass, field
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from broker.domain.users import Role
from broker.errors import Unauthenticated

ALGORITHM = "EdDSA"
MAX_TOKEN_CHARACTERS = 8 * 1024  # ours have 500; the rest is room for long names
LEEWAY_S = 30
_HEADER = frozenset({"alg", "kid", "typ"})
_REQUIRED = ["iss", "sub", "acc", "role", "iat", "exp", "jti", "gen"]
_NO_CHECKS: Any = {  # times and types are checked here, by our clock
    "require": _REQUIRED,
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_aud": False,
}


@dataclass(frozen=True, slots=True)
class AccessToken:
    """An access token as it is handed out, and its lifetime in seconds."""

    text: str = field(repr=False)
    expires_in_s: int


@dataclass(frozen=True, slots=True)
class Claims:
    """What a token says. Times in whole seconds since the epoch, as RFC 7519 has them."""

    account: str
    subject: str
    username: str
    role: Role
    token_id: str
    issued_s: int
    expires_s: int
    valid_from_ms: int
    api_token_id: str | None = None


def sign(claims: Claims, issuer: str, kid: str, key: Ed25519PrivateKey) -> str:
    """The token of `claims`."""
    payload: dict[str, object] = {
        "iss": issuer,
        "sub": claims.subject,
        "acc": claims.account,
        "role": claims.role.value,
        "name": claims.username,
        "iat": claims.issued_s,
        "exp": claims.expires_s,
        "jti": claims.token_id,
        "gen": claims.valid_from_ms,
    }
    if claims.api_token_id is not None:
        payload["api"] = claims.api_token_id
    return jwt.encode(payload, key, algorithm=ALGORITHM, headers={"kid": kid})


def read_kid(token: str) -> str:
    """The id of the key that a token says it is signed with.

    Raises:
        Unauthenticated: it is no token of the kind that we make.
    """
    if len(token) > MAX_TOKEN_CHARACTERS:
        raise _refused("the access token is too long")
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise _refused("the access token is malformed") from None
    kid = header.get("kid")
    if header.get("alg") != ALGORITHM or not isinstance(kid, str) or not header.keys() <= _HEADER:
        raise _refused("the access token was not issued by this broker")
    return kid


def verify(token: str, key: Ed25519PublicKey, issuer: str) -> Claims:
    """The claims of a token whose signature, issuer and form are right; of times, see `check_times`.

    Raises:
        Unauthenticated: they are not.
    """
    try:
        payload = jwt.decode(token, key, algorithms=[ALGORITHM], issuer=issuer, options=_NO_CHECKS)
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise _refused("the access token is not valid") from None
    if "nbf" in payload:  # we never write one, so a signed one has no meaning that we know
        raise _refused("the access token was not issued by this broker")
    try:
        return Claims(
            account=_text(payload["acc"]),
            subject=_text(payload["sub"]),
            username=_text(payload["name"]),
            role=Role(_text(payload["role"])),
            token_id=_text(payload["jti"]),
            issued_s=_integer(payload["iat"]),
            expires_s=_integer(payload["exp"]),
            valid_from_ms=_integer(payload["gen"]),
            api_token_id=_text(payload["api"]) if "api" in payload else None,
        )
    except (KeyError, TypeError, ValueError):
        raise _refused("the access token was not issued by this broker") from None


def check_times(claims: Claims, now_ms: int, lifetime_s: int) -> None:
    """Refuse a token that has ended, comes from the future, or would live longer than ours do.

    Raises:
        Unauthenticated: one of these.
    """
    if is_expired(claims, now_ms):
        raise expired()
    if claims.issued_s * 1000 > now_ms + LEEWAY_S * 1000:
        raise _refused("the access token is not valid yet")
    if not 0 < claims.expires_s - claims.issued_s <= lifetime_s + LEEWAY_S:
        raise _refused("the access token was not issued by this broker")


def is_expired(claims: Claims, now_ms: int) -> bool:
    """Whether the token's end has come."""
    return now_ms >= claims.expires_s * 1000


def expired() -> Unauthenticated:
    """The error of a token whose end has come."""
    return _refused("the access token has expired")


def _refused(message: str) -> Unauthenticated:
    return Unauthenticated(message)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError
    return value


def _integer(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError
    return value
