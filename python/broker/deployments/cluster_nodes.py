"""What the nodes of a joined cluster have: the same versions, and the environment of `deploy/node.env`.

Each node that takes work is asked by a task of its own there. Ray itself refuses nodes of another Ray or
another Python.
"""

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from broker import __version__
from broker.actors.named import NAMESPACE, list_nodes
from broker.deployments.environment import memory_environment, serve_environment
from broker.deployments.ray_internals.haproxy import find_haproxy

_ANSWER_S = 60.0  # a worker may have to be started on a busy node


class NodeState(NamedTuple):
    """What a node says of itself.

    Attributes:
        version: of the broker that is installed there.
        environment: of Ray there, the variables that all nodes must agree in.
    """

    version: str
    environment: Mapping[str, str]
    has_haproxy: bool


def find_node_faults(address: str) -> tuple[int, list[str]]:
    """How many nodes take work, and what is wrong with them, a line each. Blocks.

    Raises:
        ConnectionError: there is no cluster at `address`.
    """
    ray.init(address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False)
    try:
        nodes = list_nodes()
        asked = {node.host: _ask(node.id) for node in nodes}
        ray.wait(list(asked.values()), num_returns=len(asked), timeout=_ANSWER_S)
        return len(nodes), [fault for host, reply in asked.items() for fault in _faults(host, reply)]
    finally:
        ray.shutdown()


def compare(host: str, state: NodeState) -> list[str]:
    """What is wrong with a node."""
    faults = []
    if state.version != __version__:
        faults.append(f"{host} has the broker {state.version}, this command {__version__}")
    wanted = _wanted_environment()
    wrong = [name for name, value in wanted.items() if state.environment.get(name) != value]
    if wrong:
        faults.append(f"{host}: Ray was started with another {', '.join(wrong)} than deploy/node.env has")
    if not state.has_haproxy:
        faults.append(f"{host}: HAProxy cannot run there")
    return faults


def _faults(host: str, reply: "ray.ObjectRef[NodeState]") -> Sequence[str]:
    try:
        return compare(host, ray.get(reply, timeout=0))
    except (RayError, TimeoutError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return [f"{host} does not answer: {lines[-1] if lines else type(error).__name__}"]


def _ask(node: str) -> "ray.ObjectRef[NodeState]":
    here = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(_describe).options(num_cpus=0, max_retries=0, scheduling_strategy=here).remote()


def _describe() -> NodeState:
    environment = {name: os.environ[name] for name in _wanted_environment() if name in os.environ}
    return NodeState(__version__, environment, find_haproxy() is not None)


def _wanted_environment() -> dict[str, str]:
    return serve_environment() | memory_environment()
