"""Tokens of identity providers: OpenID Connect ID tokens (Core 1.0, section 3.1.3.7). Pure.

Only signatures by public keys are taken: a shared secret that is published as a key (HMAC) and no signature
at all are refused by name. Times are judged by our clock with 30 seconds of leeway. A token must have an
end, and an e-mail address counts only where the issuer says that it has verified it.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from broker.domain.identities import Identity, IdentityProvider
from broker.errors import BadCredentials

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
LEEWAY_S = 30
MIN_RSA_BITS = 2048
MAX_SUBJECT_CHARACTERS = 255  # OpenID Connect Core 1.0, section 2
_FAMILIES = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
_REQUIRED = ["iss", "sub", "aud", "exp", "iat"]
_NO_TIMES: Any = {"require": _REQUIRED, "verify_exp": False, "verify_nbf": False, "verify_iat": False}


def read_jose_header(token: str) -> tuple[str, str | None]:
    """The algorithm and the key id that a token names. Raises BadCredentials."""
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise refused() from None
    algorithm, kid = header.get("alg"), header.get("kid")
    if algorithm not in ALGORITHMS or "crit" in header or not (kid is None or isinstance(kid, str)):
        raise refused()
    return algorithm, kid


def read_issuer(token: str) -> str:
    """The issuer that a token names, not verified yet. Raises BadCredentials."""
    try:
        payload = jwt.decode(token, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise refused() from None
    issuer = payload.get("iss")
    if not isinstance(issuer, str) or not issuer or "\x00" in issuer:
        raise refused()
    return issuer


def find_key(keys: Iterable[Mapping[str, Any]], algorithm: str, kid: str | None) -> Any | None:
    """The public key of a key set (RFC 7517) that a token is to be verified with, or None.

    A token without a key id is taken where the set has one fitting key.
    """
    family = _FAMILIES[algorithm[:2]]
    fitting = [
        key
        for key in keys
        if key.get("kty") == family
        and key.get("use", "sig") == "sig"
        and key.get("alg", algorithm) == algorithm
        and (kid is None or key.get("kid") == kid)
    ]
    if len(fitting) != 1:
        return None
    try:
        key = jwt.PyJWK({name: value for name, value in fitting[0].items() if name != "d"}, algorithm).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        return None
    if isinstance(key, RSAPublicKey) and key.key_size < MIN_RSA_BITS:
        return None
    return key


def verify(token: str, key: Any, algorithm: str, provider: IdentityProvider, now_ms: int) -> Identity:
    """Who the token is of.

    Raises:
        BadCredentials: the signature, issuer, audience or times are wrong, or a claim has the wrong type.
    """
    try:
        payload = jwt.decode(
            token,
            key,
            algorithms=[algorithm],
            audience=list(provider.audiences),
            issuer=provider.issuer,
            options=_NO_TIMES,
        )
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise refused() from None
    _check_times(payload, now_ms / 1000)
    subject = payload["sub"]
    if not isinstance(subject, str) or not 0 < len(subject) <= MAX_SUBJECT_CHARACTERS or "\x00" in subject:
        raise refused()
    role = provider.role_of(_texts(payload.get(provider.role_claim))) if provider.role_claim else None
    return Identity(provider.issuer, subject, _verified_email(payload), role)


def refused() -> BadCredentials:
    """The one error of all that can be wrong with a token: which it is, is not told."""
    return BadCredentials("the identity token is not accepted")


def _check_times(payload: Mapping[str, Any], now_s: float) -> None:
    expires, issued, begins = payload["exp"], payload["iat"], payload.get("nbf", 0)
    if any(isinstance(time, bool) or not isinstance(time, int | float) for time in (expires, issued, begins)):
        raise refused()
    if now_s >= expires + LEEWAY_S or issued > now_s + LEEWAY_S or begins > now_s + LEEWAY_S:
        raise refused()


def _verified_email(payload: Mapping[str, Any]) -> str | None:
    """Some issuers write the claim as text."""
    email, is_verified = payload.get("email"), payload.get("email_verified")
    if not isinstance(email, str) or "\x00" in email or (is_verified is not True and is_verified != "true"):
        return None
    return email


def _texts(value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [text for text in values if isinstance(text, str)]
