"""Which owner has which topic: rendezvous hashing over the slots of the pool.

A topic goes to the slot with the largest hash of topic and slot. When the pool grows by one, only the topics
that the new slot wins move.
"""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b


def slot_name(index: int) -> str:
    """The name of a slot: of its actor, and of its row in `owner_slots`."""
    return f"owner-{index}"


@lru_cache(maxsize=65_536)
def owner_of(topic: str, owners: int) -> int:
    """The index of the topic's owner in a pool of `owners`; the same in every process and version."""
    return max(range(owners), key=lambda index: _weight(topic, index))


def node_of(index: int, nodes: Sequence[str]) -> str:
    """The node that slot `index` prefers: slots go round the nodes. Raises ValueError without a node."""
    if not nodes:
        raise ValueError("there is no node")
    return sorted(nodes)[index % len(nodes)]


def _weight(topic: str, index: int) -> bytes:
    return blake2b(topic.encode(), digest_size=8, key=slot_name(index).encode()).digest()
