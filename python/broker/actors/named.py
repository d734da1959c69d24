"""Named Ray actors and the nodes they run on, as pools and gateways ask Ray for them. All of it blocks."""

from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError

NAMESPACE = "broker"
"""Ray's namespace of all actors of the product."""


def list_names(prefix: str) -> list[str]:
    """The names of the actors that begin so, in no order."""
    actors = ray.util.list_named_actors(all_namespaces=True)
    names = [actor["name"] for actor in actors if actor["namespace"] == NAMESPACE]
    return [name for name in names if name.startswith(prefix)]


def find_actor(name: str) -> Any:
    """The handle of an actor; None when there is none of that name."""
    with suppress(ValueError):
        return ray.get_actor(name, namespace=NAMESPACE)
    return None


def live_nodes() -> list[str]:
    """The ids of the nodes that are there."""
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]  # Ray leaves it without types
    return [node["NodeID"] for node in nodes if node["Alive"]]


def kill(actor: Any) -> None:
    """End an actor at once and for good. Idempotent."""
    with suppress(RayError):
        ray.kill(actor, no_restart=True)
