"""Workers that are started ahead of time, and on a cluster of others one or more on each node.

An actor starts at once where a worker waits, and after one to four seconds where one has to be made. Ray
gives an actor only a worker of its job that has run nothing yet, so no task can leave one behind; the raylet
starts one when it is asked to. A node that is lost takes its workers with it, so each node has as many as
the slots of another may need. Serve's actors take them too; a look every few seconds finds that.

Names used: `init_grpc_channel` of `ray._private.grpc_utils`; `PrestartWorkersRequest`, `GetNodeStatsRequest`
and what the answer says of a worker (`actor_id`, `job_id`, `worker_type`) of `ray.core.generated`;
`get_runtime_env_string` and `get_job_id` of Ray's context.
Probe: the import; a raylet that knows no such call refuses it, and the log says `spare_worker_refused`.
Fall-back: no spare, so that an actor starts after seconds.
Gain: an actor whose node is lost starts elsewhere at once.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import grpc
import ray
from ray._private.grpc_utils import init_grpc_channel
from ray.core.generated import common_pb2, node_manager_pb2, node_manager_pb2_grpc, runtime_environment_pb2
from ray.exceptions import RayError

from broker.actors.named import Node, list_nodes

_LOOK_S = 5.0
_ANSWER_S = 5.0
_START_S = 30.0  # workers that do not wait by then are asked for again; a busy node takes ten seconds
_KEPT_S = 10 * 365 * 86_400
_NOBODY = b"\xff" * 16  # the id of no actor

_log = logging.getLogger(__name__)


async def keep_spares(spares: Callable[[int], int]) -> None:
    """Have idle workers on each node that takes work, until cancelled. Needs a cluster that was joined.

    Args:
        spares: how many each node should have, of the number of nodes.
    """
    clock = asyncio.get_running_loop().time
    asked_s: dict[str, float] = {}
    while True:
        try:
            nodes = await asyncio.to_thread(list_nodes)
        except (RayError, OSError):
            nodes = []  # Ray cannot be asked now
        asked_s = {node.id: asked_s[node.id] for node in nodes if node.id in asked_s}
        due = [node for node in nodes if clock() - asked_s.get(node.id, -_START_S) >= _START_S]
        wanted = spares(len(nodes))
        for node, was_asked in zip(
            due, await asyncio.gather(*(_top_up(n, wanted) for n in due)), strict=True
        ):
            if was_asked:
                asked_s[node.id] = clock()
        await asyncio.sleep(_LOOK_S)


async def _top_up(node: Node, wanted: int) -> bool:
    """Have a raylet start what its node lacks; whether it lacked any. A node that is silent lacks none."""
    context = ray.get_runtime_context()
    job = context.get_job_id()
    environment: str = context.get_runtime_env_string()  # type: ignore[no-untyped-call]  # Ray leaves it without types
    try:
        missing = wanted - len(await asyncio.to_thread(list_idle, node, job))
        if missing > 0:
            await asyncio.to_thread(start_workers, node, missing, job, environment)
    except grpc.RpcError as error:
        _log.info("spare_worker_refused", extra={"node": node.host, "reason": str(error)})
        return False
    return missing > 0


def start_workers(node: Node, count: int, job: str, environment: str = "") -> None:
    """Ask a raylet for more idle workers. Blocks. Raises grpc.RpcError.

    Args:
        job: whose they are, in hexadecimal digits.
        environment: the runtime environment as Ray writes it; the job's own actors have the job's.
    """
    # Modules that protoc has made have no types.
    messages: Any = node_manager_pb2
    environments: Any = runtime_environment_pb2
    languages: Any = common_pb2.Language  # type: ignore[attr-defined]
    asked = messages.PrestartWorkersRequest(
        language=languages.PYTHON,
        job_id=bytes.fromhex(job),
        num_workers=count,
        keep_alive_duration_secs=_KEPT_S,
        runtime_env_info=environments.RuntimeEnvInfo(serialized_runtime_env=environment),
    )
    with init_grpc_channel(_place(node)) as channel:
        _raylet(channel).PrestartWorkers(asked, timeout=_ANSWER_S)


def list_idle(node: Node, job: str) -> list[int]:
    """The processes of a node's workers that wait for an actor of a job. Blocks. Raises grpc.RpcError."""
    messages: Any = node_manager_pb2
    kinds: Any = common_pb2.WorkerType  # type: ignore[attr-defined]
    with init_grpc_channel(_place(node)) as channel:
        stats = _raylet(channel).GetNodeStats(messages.GetNodeStatsRequest(), timeout=_ANSWER_S)
    workers = [each for each in stats.core_workers_stats if each.worker_type == kinds.WORKER]
    return [each.pid for each in workers if each.job_id.hex() == job and each.actor_id == _NOBODY]


def _raylet(channel: Any) -> Any:
    connect: Any = node_manager_pb2_grpc.NodeManagerServiceStub
    return connect(channel)


def _place(node: Node) -> str:
    return f"[{node.host}]:{node.port}" if ":" in node.host else f"{node.host}:{node.port}"
