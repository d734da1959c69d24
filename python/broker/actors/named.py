"""Queries to Ray for named actors and the nodes they run on. Every function blocks."""

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError

from broker.actors.placement import slot_name

if TYPE_CHECKING:
    from broker.actors.actor import SlotActor

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


def get_actor(kind: str, index: int) -> "ActorHandle[SlotActor[Any]]":
    """The handle of a slot's newest actor. Two round trips to Ray.

    Raises:
        ValueError: none runs.
    """
    name = find_newest(kind, index)
    if name is None:
        raise ValueError(f"{slot_name(kind, index)} is not running")
    return ray.get_actor(name, namespace=NAMESPACE)


def find_newest(kind: str, index: int) -> str | None:
    """The name of a slot's newest actor, which may not have started yet; None when there is none."""
    names = list_slot_names(slot_name(kind, index))
    return names[-1] if names else None


def list_slot_names(slot: str) -> list[str]:
    """The names of a slot's actors, the newest last."""
    return sorted(list_names(f"{slot}."), key=_age)


def number_of(name: str) -> int:
    """The number of an actor among those that its slot has had, which its name carries."""
    return int(name.split(".")[1])


def _age(name: str) -> tuple[int, str]:
    return number_of(name), name


class Node(NamedTuple):
    """A node, and where its raylet listens."""

    id: str
    host: str
    port: int


def list_nodes(*, takes_work: bool = True) -> list[Node]:
    """The nodes that Ray thinks are there; with `takes_work` those that have CPUs.

    A node without (`ray start --num-cpus=0`) is for Ray's own head, for `broker up`, or for GPUs.
    """
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]  # Ray leaves it without types
    return [
        Node(node["NodeID"], node["NodeManagerAddress"], node["NodeManagerPort"])
        for node in nodes
        if node["Alive"] and (node["Resources"].get("CPU", 0) > 0 or not takes_work)
    ]


def live_nodes() -> list[str]:
    """The ids of the nodes that take work."""
    return [node.id for node in list_nodes()]


def kill(actor: Any) -> None:
    """End an actor at once and for good. Idempotent."""
    with suppress(RayError):
        ray.kill(actor, no_restart=True)
