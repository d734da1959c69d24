"""Empties a node of a joined cluster, so that it can be taken away: `broker drain`.

Ray is told that the node leaves. The conductor then sends the viewers of its gateway away and starts its
owners and counters elsewhere, and Ray Serve moves its replicas. This waits until no gateway, owner or counter
is left.
"""

import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path

import ray

from broker.actors.named import NAMESPACE, Node, list_nodes
from broker.concurrency.deadline import until_deadline
from broker.deployments.gateways import name_prefix
from broker.deployments.ray_internals.actor_processes import list_processes
from broker.owners.placement import OWNER
from broker.setup_error import SetupError
from broker.voting.counting.placement import COUNTER

_LOOK_S = 0.5
_REASON = "DRAIN_NODE_REASON_PREEMPTION"  # Ray refuses the other one while anything runs there
_GONE = "does the conductor (`broker up`) run?"


def drain_node(address: str, name: str, wait_s: float, tell: Callable[[str], None]) -> None:
    """Have a node leave, and return when nothing of ours is left on it but replicas of Ray Serve.

    Args:
        address: of the cluster's head.
        name: the node's address, or how its id begins; empty for the node of this process.
        wait_s: 0 only tells Ray.
        tell: is given a line about each step.

    Raises:
        SetupError: there is no such node, or something is left after `wait_s`.
    """
    ray.init(address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False)
    try:
        node = _find(name)
        _tell_ray(address, node, wait_s)
        tell(f"{node.host} takes nothing new")
        if wait_s:
            _until_empty(node, wait_s, tell)
    finally:
        ray.shutdown()


def _find(name: str) -> Node:
    name = name or ray.get_runtime_context().get_node_id()
    nodes = list_nodes(takes_work=False)
    found = [node for node in nodes if node.host == name] or [
        node for node in nodes if node.id.startswith(name)
    ]
    if len(found) != 1:
        known = ", ".join(sorted(node.host for node in nodes))
        raise SetupError(f"{name}: {len(found) or 'no'} nodes of the cluster are called so; it has {known}")
    return found[0]


def _tell_ray(address: str, node: Node, wait_s: float) -> None:
    command: list[str] = [
        *(
            str(Path(sys.executable).with_name("ray")),
            "drain-node",
            f"--address={address}",
            f"--node-id={node.id}",
        ),
        *(f"--reason={_REASON}", "--reason-message=broker drain"),
        *([f"--deadline-remaining-seconds={wait_s:.0f}"] if wait_s else []),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise SetupError(f"Ray does not let {node.host} leave: {lines[-1] if lines else done.returncode}")


def _until_empty(node: Node, wait_s: float, tell: Callable[[str], None]) -> None:
    left: Collection[str] = ()
    for _ in until_deadline(wait_s, _LOOK_S):
        told, left = left, _list_left(node)
        if not left:
            tell(f"{node.host} can be taken away")
            return
        if left != told:
            tell(f"waiting for {', '.join(left)}")
    raise SetupError(f"{node.host} still has {', '.join(left)} after {wait_s:g} s; {_GONE}")


def _list_left(node: Node) -> list[str]:
    """The gateways, owners and counters on a node, without what makes their names unique."""
    prefixes = (name_prefix(node.id), f"{OWNER}-", f"{COUNTER}-")
    names = [name for prefix in prefixes for name in list_processes(prefix, node.id)]
    gateway = name_prefix(node.id)
    return sorted("gateway" if name.startswith(gateway) else name.partition(".")[0] for name in names)
