"""The names of slots, and their preferred nodes."""

from collections.abc import Sequence


def slot_name(kind: str, index: int) -> str:
    """The name of a slot: of its actor, and of its row in `owner_slots`."""
    return f"{kind}-{index}"


def node_of(index: int, nodes: Sequence[str]) -> str:
    """The node that slot `index` prefers: slots go round the nodes. Raises ValueError without a node."""
    if not nodes:
        raise ValueError("there is no node")
    return sorted(nodes)[index % len(nodes)]
