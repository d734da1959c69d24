"""API tokens: secrets that a user gives to programs instead of a password."""

import hashlib
import re

from pydantic import Field

from broker.domain.values import Model, Name, Time

MAX_API_TOKENS = 100  # of one user; its bearer tokens are checked against all of them
_PREFIX = "brk_"  # by which people and scanners of source code know what they have found
_SECRET = re.compile(rf"{_PREFIX}[A-Za-z0-9_-]{{43}}")


class ApiToken(Model):
    """One API token, without its secret. `expires` is exclusive; None never ends."""

    id: str
    name: Name
    created_time: Time
    expires: Time | None = None


class NewApiToken(ApiToken):
    """An API token as its making answers it: the only time that the secret is seen."""

    token: str = Field(repr=False)


def build_secret(random: str) -> str:
    """The text of a token, from 256 random bits as URL-safe text."""
    return f"{_PREFIX}{random}"


def is_secret(token: str) -> bool:
    """Whether a text has the form of `build_secret`; no access token has."""
    return _SECRET.fullmatch(token) is not None


def hash_secret(token: str) -> bytes:
    """What is stored of a token, and by which it is found: 32 bytes."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()
