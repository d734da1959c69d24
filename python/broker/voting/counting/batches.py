"""The values that travel between senders and counters.

A sender sends one batch after the other, each with the next number, and sends a batch again under its number
until it is answered. So the counter knows a repeated one by the sender and the number, and answers it as the
first time.

A request with an idempotency key is a batch whose sender is the key and whose number is the hash of the
request (`CountKey`). It is known for as long as keys are, so that a caller who repeats a request counts
nothing twice, not even where one counter has counted its part and another has not.
"""

import hashlib
import struct
from typing import NamedTuple

from broker.domain.idempotency import IdempotencyKey
from broker.errors import BrokerError
from broker.storage.answer_log import KEY_SENDER


class Group(NamedTuple):
    """Records for one shard of one poll, in the order of counting; see `broker._native.Tally`."""

    poll: int
    shard: int
    allow_change: bool
    records: bytes


class CountKey(NamedTuple):
    """A sender for one request; another request under the same key has another number."""

    sender: str
    number: int

    @classmethod
    def of(cls, account: str, key: IdempotencyKey, program_uid: int) -> "CountKey":
        """The key of a request to count for a program."""
        parts = (account, key.caller, key.key, str(program_uid))
        named = hashlib.sha256("\0".join(parts).encode()).hexdigest()
        return cls(f"{KEY_SENDER}{named}", int.from_bytes(key.request_hash[:8], "big") >> 1 | 1)


class VoteBatch(NamedTuple):
    """Groups from one sender; `number` grows by one with each of its batches, except with a `CountKey`."""

    sender: str
    number: int
    groups: tuple[Group, ...]

    @property
    def has_key(self) -> bool:
        """Whether its sender is a `CountKey`."""
        return self.sender.startswith(KEY_SENDER)

    @property
    def size_bytes(self) -> int:
        """About how much room it takes; for bounds, not for bills."""
        return sum(len(group.records) + _OVERHEAD_BYTES for group in self.groups) + _OVERHEAD_BYTES


Outcomes = tuple[bytes | None, ...]
"""For each group a byte a record, 1 if it changed a count; None when the poll is gone, else `SEALED`."""

SEALED = b""
"""The outcome of a group whose poll had closed, and its result been called final, before it was counted."""

BatchReply = Outcomes | BrokerError

_OVERHEAD_BYTES = 200  # of a batch or a group besides its records, roughly


_GONE = -1
_LENGTH = struct.Struct(">i")


def pack_outcomes(outcomes: Outcomes) -> bytes:
    """The outcomes as one value to store."""
    parts: list[bytes] = []
    for each in outcomes:
        parts += (_LENGTH.pack(_GONE),) if each is None else (_LENGTH.pack(len(each)), each)
    return b"".join(parts)


def unpack_outcomes(packed: bytes) -> Outcomes:
    """What `pack_outcomes` packed."""
    outcomes: list[bytes | None] = []
    place = 0
    while place < len(packed):
        (length,) = _LENGTH.unpack_from(packed, place)
        place += _LENGTH.size
        outcomes.append(None if length == _GONE else packed[place : place + length])
        place += max(length, 0)
    return tuple(outcomes)
