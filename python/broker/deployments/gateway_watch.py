"""Kills the gateway of this node when it hangs, on a joined cluster; Ray then starts another.

A conductor replaces a gateway that hangs, and on a cluster that was joined gateways outlive the conductor. So
each API replica, of which such a cluster has one on each node, watches over the gateway of its node. The two
are on one machine: what is between nodes is never taken for a gateway that hangs, and a machine that stands
still does so with both (`broker.actors.liveness`). Several replicas on a node ask about the same process
and can kill that one only, and with a conductor there whoever is first does the same.
"""

import asyncio
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from broker.actors.link import LinkLost
from broker.actors.liveness import Pace, watch_process
from broker.actors.named import find_actor
from broker.deployments.gateways import name_prefix
from broker.deployments.ray_internals.actor_processes import list_processes
from broker.metrics.counts import GATEWAY_REPLACEMENTS

# Viewers who are sent away for nothing cost more than some seconds: an owner that hangs is killed sooner.
_PACE = Pace(pause_s=4.0, answer_s=0.9, idle_s=5.0)


class GatewayAway(Exception):
    """There is no gateway on this node now."""


class GatewayLink:
    """The way to the gateway of this node, by calls of Ray; there is no other, and they are rare."""

    def __init__(self) -> None:
        self._node = ray.get_runtime_context().get_node_id()
        self._actor: Any = None
        self._pid = 0

    async def call(self, method: str, *arguments: object, timeout_s: float) -> Any:
        """Ask the gateway for its process. Of one that is new here Ray is asked: it may hang already.

        Raises:
            LinkLost: from a `TimeoutError` when it does not answer, else when there is none.
        """
        try:
            if self._actor is None:
                # Without the time limit: while Ray cannot be asked nothing is known about the gateway.
                self._actor, self._pid = await asyncio.to_thread(self._find)
                return self._pid
            async with asyncio.timeout(timeout_s):
                return await _wait(getattr(self._actor, method).remote(*arguments))
        except TimeoutError as error:
            if not _runs(self._pid):
                self._actor = None  # Ray may be about to tell so
            raise LinkLost(method) from error
        except (GatewayAway, RayError) as error:
            self._actor = None  # another may have its place
            raise LinkLost(method) from error

    def close(self) -> None:
        """Nothing is held."""

    def _find(self) -> tuple[Any, int]:
        for name, pid in list_processes(name_prefix(self._node), self._node).items():
            if (actor := find_actor(name)) is not None:
                return actor, pid
        raise GatewayAway


async def watch_gateway() -> None:
    """Watch over the gateway of this node, until cancelled. For a worker of Ray's on that node."""
    await watch_process("gateway", GatewayLink(), _PACE, GATEWAY_REPLACEMENTS.add)


def _runs(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def _wait(reference: Any) -> Any:
    return await reference
