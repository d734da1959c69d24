"""Maps topics to owners: rendezvous hashing over the slots of the pool.

A topic goes to the slot with the largest hash of topic and slot. When the pool grows by one, only the topics
that the new slot wins move.
"""

from functools import lru_cache
from hashlib import blake2b

from broker.actors.placement import slot_name

OWNER = "owner"
"""The kind of the owners' slots."""


@lru_cache(maxsize=65_536)
def owner_of(topic: str, owners: int) -> int:
    """The index of the topic's owner in a pool of `owners`; the same in every process and version."""
    return max(range(owners), key=lambda index: _weight(topic, index))


def _weight(topic: str, index: int) -> bytes:
    return blake2b(topic.encode(), digest_size=8, key=slot_name(OWNER, index).encode()).digest()
