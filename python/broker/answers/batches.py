"""What travels from a door to a counter, and back.

A door sends one batch after the other, each with the next number, and sends a batch again under its number
until it is answered. So the counter knows a repeated one by the door and the number, and answers it as the
first time.
"""

import struct
from typing import NamedTuple

from broker.errors import BrokerError


class Group(NamedTuple):
    """Records for one shard of one poll, in the order of counting; see `broker._native.Tally`."""

    poll: int
    shard: int
    allow_change: bool
    records: bytes


class Batch(NamedTuple):
    """Groups from one door; `number` grows by one with each of its batches."""

    door: str
    number: int
    groups: tuple[Group, ...]

    @property
    def size_bytes(self) -> int:
        """About how much room it takes; for bounds, not for bills."""
        return sum(len(group.records) + _OVERHEAD_BYTES for group in self.groups) + _OVERHEAD_BYTES


Outcomes = tuple[bytes | None, ...]
"""For each group a byte a record, 1 if it changed a count; None when the poll is gone."""

Answer = Outcomes | BrokerError

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
