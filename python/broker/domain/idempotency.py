"""Idempotency keys: how a repeated request is recognised, and what it is answered."""

from dataclasses import dataclass, replace
from typing import NamedTuple

from broker.errors import Conflict, InvalidRequest

MAX_KEY_CHARACTERS = 255


def check_key(key: object, field: str) -> str:
    """A key that a caller gave in `field`. Raises InvalidRequest."""
    if not isinstance(key, str) or not 1 <= len(key) <= MAX_KEY_CHARACTERS or not key.isprintable():
        raise InvalidRequest.of_field(field, f"must be 1 to {MAX_KEY_CHARACTERS} printable characters")
    return key


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A caller's claim that a request is the one it sent before.

    Attributes:
        caller: the subject of its token; without a token it stands for the address.
        request_hash: SHA-256 of operation, target and body; another hash under the same key is a conflict.
            A streamed body's own hash is behind it once it is known.
        is_list: a publish is answered with a list of its events, also if it has one only.
    """

    caller: str
    key: str
    request_hash: bytes
    is_list: bool = False

    def with_body(self, body_hash: bytes) -> "IdempotencyKey":
        """The key of a request whose body has been read."""
        return replace(self, request_hash=self.request_hash + body_hash)


class KeptResult(NamedTuple):
    """What a request with a key was answered: the HTTP status, and the JSON, empty without any."""

    status: int
    body: bytes


class Repeated(Exception):
    """The key has a result already: nothing was done this time, and `result` is the answer."""

    def __init__(self, result: KeptResult) -> None:
        super().__init__()
        self.result = result


def used_for_another() -> Conflict:
    """The error of a key that came with another request."""
    return Conflict("the idempotency key was used for another request")
