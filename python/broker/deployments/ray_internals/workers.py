"""The workers of our own Ray: forked from one process, with one started ahead of time.

An actor that has died starts at once where an idle worker is there, and after most of a second where one has
to be made. Ray gives an actor only a worker that has run nothing yet, so no task can leave one behind; the
raylet starts one when it is asked to.

Names used: `init_grpc_channel` of `ray._private.grpc_utils`, `PrestartWorkersRequest` of
`ray.core.generated`, and `ray::IDLE`, as a worker that waits calls itself.
Probe: the import; a raylet that knows no such call refuses it, and the log says `spare_worker_refused`.
Fall-back: no spare, so that an actor starts after most of a second.
Gain: an actor that has died starts at once.
"""

import asyncio
import logging
import os
import select
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import ray
from ray._private.grpc_utils import init_grpc_channel
from ray.core.generated import common_pb2, node_manager_pb2, node_manager_pb2_grpc

from broker.deployments.ray_internals.fork_client import JOB
from broker.deployments.ray_internals.fork_server import ServerProcess, start_fork_server

_FORK_SERVER_PAUSE_S = 1.0
_LOOK_S = 1.0  # at one file of /proc
_ANSWER_S = 5.0
_START_S = 10.0  # a worker that is not there by then is asked for again
_NOTICE_S = 0.3  # for the raylet to read that a worker's socket has closed
_KEPT_S = 10 * 365 * 86_400
_IDLE = b"ray::IDLE"  # what Ray calls a worker that waits

_log = logging.getLogger(__name__)


class RayWorkers:
    """The fork server of our own Ray, and a spare worker that is forked already."""

    def __init__(self, forks: Path, server: ServerProcess) -> None:
        """Args: forks: where `server`, and each one that takes its place, listens."""
        self._forks = forks
        self._server = server

    async def keep_server(self) -> None:
        """Start the fork server again whenever it ends, until cancelled; meanwhile workers do without."""
        while True:
            server = self._server
            await until_ended(server.pid)
            server.wait()
            if server is self._server:
                _log.warning("fork_server_ended")
                self._server = start_fork_server(self._forks)
            await asyncio.sleep(_FORK_SERVER_PAUSE_S)

    async def keep_spare(self) -> None:
        """Have an idle worker at all times, in which an actor starts at once, until cancelled.

        Needs a Ray that this process has joined.
        """
        clock = asyncio.get_running_loop().time
        asked_s = -_START_S
        spare = 0
        while True:
            if not (spare and _is_idle(spare)):
                spare = next(iter(self.idle()), 0)
            if spare:
                asked_s = -_START_S
            elif clock() - asked_s >= _START_S:
                asked_s = clock()
                try:
                    await asyncio.to_thread(_start_worker)
                except grpc.RpcError as error:
                    _log.warning("spare_worker_refused", extra={"reason": str(error)})
            await asyncio.sleep(_LOOK_S)

    async def renew(self) -> None:
        """Have workers of the code that is installed now: none that was forked before."""
        old, idle = self._server, self.idle()
        self._server = start_fork_server(self._forks)
        old.kill()
        await asyncio.to_thread(old.wait)
        # At once, not when they like: the raylet gives actors whoever has not ended.
        await asyncio.gather(*map(_kill, idle))
        await asyncio.sleep(_NOTICE_S)

    def idle(self) -> list[int]:
        """The processes of the workers that wait for an actor."""
        server = self._server.pid
        try:
            children = Path(f"/proc/{server}/task/{server}/children").read_bytes().split()
        except OSError:
            return []
        return [int(pid) for pid in children if _is_idle(int(pid))]


async def until_ended(pid: int) -> None:
    """Return when a child has ended. It is not waited for: while it is not, nobody takes its number."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    descriptor = os.pidfd_open(pid)
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def _kill(pid: int) -> None:
    """End a process and return when it has ended."""
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            if _is_idle(pid):  # it may have been given an actor since
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                await asyncio.to_thread(select.select, [descriptor], [], [])
        finally:
            os.close(descriptor)


def _start_worker() -> None:
    """Ask the raylet for another idle worker. Raises grpc.RpcError."""
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]  # Ray leaves it without types
    node = next(node for node in nodes if node["Alive"])
    # Modules that protoc has made have no types.
    messages: Any = node_manager_pb2
    languages: Any = common_pb2.Language  # type: ignore[attr-defined]
    connect: Any = node_manager_pb2_grpc.NodeManagerServiceStub
    asked = messages.PrestartWorkersRequest(
        language=languages.PYTHON,
        job_id=bytes.fromhex(JOB),
        num_workers=1,
        keep_alive_duration_secs=_KEPT_S,
    )
    with init_grpc_channel(f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}") as channel:
        connect(channel).PrestartWorkers(asked, timeout=_ANSWER_S)


def _is_idle(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(_IDLE)
    return False
