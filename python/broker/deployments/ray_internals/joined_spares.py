"""Idle workers on every node of a joined cluster, in which the actors of a lost node start at once.

On a Ray of our own one worker is forked ahead (`workers`). On a joined cluster nothing is forked, and a new
worker takes one to two seconds until an actor can begin in it, half of what viewers miss when a node loses
its power. So each node is asked how many of our workers wait for an actor, and to start those that are
missing.

Ray gives an actor only a worker of its job and its runtime environment, so both are named. The workers end
with the job, which is that of the conductor.

Names used: `init_grpc_channel` of `ray._private.grpc_utils`; `GetNodeStatsRequest`, `PrestartWorkersRequest`
and their fields of `ray.core.generated`.
Probe: the import; a raylet that knows no such call refuses it, and the log says `spare_workers_refused`.
Fall-back: no spares, so that an actor starts after one to two seconds.
Gain: an owner of a lost node runs elsewhere after 1.8 s, and not after 3.3 (three nodes on two cores).
"""

import asyncio
import logging
from typing import Any

import grpc
import ray
from ray._private.grpc_utils import init_grpc_channel
from ray.core.generated import common_pb2, node_manager_pb2, node_manager_pb2_grpc

from broker.actors.named import list_nodes

SPARES = 2
"""On each node: the node that is lost may have had an owner and a counter."""

_LOOK_S = 5.0
_START_S = 15.0  # workers that are not there by then are asked for again
_ANSWER_S = 5.0
_KEPT_S = 10 * 365 * 86_400

_log = logging.getLogger(__name__)


async def keep_spares() -> None:
    """Have idle workers on every node that takes work, until cancelled. Needs a Ray that was joined."""
    clock = asyncio.get_running_loop().time
    asked_s: dict[str, float] = {}
    while True:
        nodes = await asyncio.to_thread(list_nodes)
        asked_s = {host: at for host, at in asked_s.items() if any(node.host == host for node in nodes)}
        for node in nodes:
            if clock() - asked_s.get(node.host, -_START_S) < _START_S:
                continue
            try:
                if await asyncio.to_thread(_complete, f"{node.host}:{node.port}"):
                    asked_s[node.host] = clock()
            except grpc.RpcError as error:
                _log.warning("spare_workers_refused", extra={"node": node.host, "reason": str(error)})
                asked_s[node.host] = clock()
        await asyncio.sleep(_LOOK_S)


def count_spares(address: str) -> int:
    """How many workers of this process's job wait for an actor on a node. Blocks.

    Args:
        address: host:port of its raylet.

    Raises:
        grpc.RpcError: it does not answer.
    """
    messages: Any = node_manager_pb2
    ours = bytes.fromhex(ray.get_runtime_context().get_job_id())
    worker = common_pb2.WorkerType.Value("WORKER")  # type: ignore[attr-defined]  # made by protoc
    with init_grpc_channel(address) as channel:
        stats = _stub(channel).GetNodeStats(messages.GetNodeStatsRequest(), timeout=_ANSWER_S)
    return sum(
        each.job_id == ours and each.worker_type == worker and not each.actor_id.strip(b"\xff")
        for each in stats.core_workers_stats
    )


def _complete(address: str) -> bool:
    """Ask a node for the workers that are missing; whether there were any. Raises grpc.RpcError."""
    missing = SPARES - count_spares(address)
    if missing <= 0:
        return False
    context: Any = ray.get_runtime_context()
    messages: Any = node_manager_pb2
    languages: Any = common_pb2.Language  # type: ignore[attr-defined]  # made by protoc
    asked = messages.PrestartWorkersRequest(
        language=languages.PYTHON,
        job_id=bytes.fromhex(context.get_job_id()),
        num_workers=missing,
        keep_alive_duration_secs=_KEPT_S,
    )
    asked.runtime_env_info.serialized_runtime_env = context.get_runtime_env_string()
    with init_grpc_channel(address) as channel:
        _stub(channel).PrestartWorkers(asked, timeout=_ANSWER_S)
    return True


def _stub(channel: grpc.Channel) -> Any:
    connect: Any = node_manager_pb2_grpc.NodeManagerServiceStub
    return connect(channel)
