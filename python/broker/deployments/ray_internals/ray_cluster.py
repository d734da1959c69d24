"""Ray: a lightweight cluster of our own, or an existing one.

Of the processes that `ray start` runs, ours has the GCS and the raylet. Dashboard, autoscaler, client server
and log monitor are left out: together 300 MB and half of the start. Ray's own switches cannot leave the
dashboard out, hence the subclass. The raylet cannot be without its two agents: `standby` takes their places,
which saves 190 MB. The one for runtime environments comes when an actor wants one; the other would only
serve the dashboard. Workers are forked from a process that has imported everything (`fork_server`).

Ray's processes listen on every interface unless the node's address is 127.0.0.1, and Ray rewrites that one to
the machine's own, except on systems where it runs no clusters. `environment` has it take this for one of them
(`RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER`): then they listen on the loopback interface alone. The system chooses
their ports, so instances on one machine may share the address. Other users of the machine reach it too, so
who comes in is asked for a certificate (`ray_tls`) and for a secret, both new at each start.

Names used: `services.start_ray_process`, `Node` with `_init_temp`, `start_gcs_server`, `start_raylet` and
`start_api_server`, `RayParams` and names of processes, of `ray._private`; `persist_port` and names of
ports, of `ray._raylet`; the raylet's arguments `--python_worker_command`, `--dashboard_agent_command` and
`--runtime_env_agent_command`; `RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER`.
Probe: the imports. An argument of another name is left as it is.
Fall-back: Ray's own helpers and workers, where arguments have other names; else the start fails. A cluster
that is joined needs none of it.
Gain: 490 MB and half of the start; nothing of Ray listens where other machines reach it.
"""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray._private import services
from ray._private.node import Node
from ray._private.parameter import RayParams
from ray._private.ray_constants import PROCESS_TYPE_GCS_SERVER, PROCESS_TYPE_RAYLET
from ray._raylet import (  # type: ignore[attr-defined]  # its stubs leave them out
    DASHBOARD_AGENT_LISTEN_PORT_NAME,
    METRICS_AGENT_PORT_NAME,
    METRICS_EXPORT_PORT_NAME,
    RUNTIME_ENV_AGENT_PORT_NAME,
    persist_port,
)

from broker import timers
from broker.actors.named import NAMESPACE
from broker.deployments.environment import RAY_HOST, joined_environment
from broker.deployments.ports import internal_port
from broker.deployments.ray_internals import fork_client, ray_logs, standby
from broker.deployments.ray_internals.fork_server import RAY_LATE_S, SOCKET, ServerProcess
from broker.deployments.ray_internals.workers import RayWorkers, until_ended

_UNUSED_PORTS = (METRICS_AGENT_PORT_NAME, METRICS_EXPORT_PORT_NAME, DASHBOARD_AGENT_LISTEN_PORT_NAME)
_NOBODY = -1  # Ray's word for a port where nothing listens
_start_ray_process = services.start_ray_process

_OBJECT_STORE_BYTES = 80 << 20  # Ray's smallest is 75 MiB; nothing large goes through it


@dataclass(frozen=True, slots=True)
class LocalRay:
    """A Ray that this process started; it dies with this process, also by `kill -9`."""

    node: Node
    address: str
    workers: RayWorkers


def start_local(scratch: Path, log: Path, server: ServerProcess) -> LocalRay:
    """Start Ray's processes. Call it on the main thread: they die with the thread that started them.

    Args:
        scratch: the instance's directory for sockets; Ray's own is made in it.
        log: the directory of logs.
        server: the fork server, at its socket in `scratch`.
    """
    parameters = RayParams(
        node_ip_address=RAY_HOST,
        node_name=RAY_HOST,
        gcs_server_port=0,
        object_store_memory=_OBJECT_STORE_BYTES,
        temp_dir=str(scratch / "ray"),  # Ray lets everybody read and write it
        include_dashboard=False,
        runtime_env_agent_port=internal_port(),
        include_log_monitor=False,  # type: ignore[arg-type]  # Ray annotates a bool as text
        no_monitor=True,
        ray_client_server_port=None,
    )
    forks = scratch / SOCKET
    workers = RayWorkers(forks, server)
    node = _LightNode(log, forks, parameters, head=True, shutdown_at_exit=False, spawn_reaper=True)
    return LocalRay(node, node.address, workers)


def connect_local(local: LocalRay) -> None:
    """Make this process a driver of our own cluster."""
    with timers.late(RAY_LATE_S):
        ray.init(
            local.address,
            namespace=NAMESPACE,
            log_to_driver=False,
            configure_logging=False,
            _node_ip_address=RAY_HOST,
        )


async def until_lost(local: LocalRay) -> str:
    """Return when one of Ray's two processes has ended, with its name.

    Neither can be restarted: the GCS has its tables in memory, and workers know their raylet. What runs on
    Ray goes on without them, the GCS' for as long as `environment` says, but nothing that dies is replaced.
    """
    processes = {
        "the GCS": local.node.all_processes[PROCESS_TYPE_GCS_SERVER][0].process.pid,
        "the raylet": local.node.all_processes[PROCESS_TYPE_RAYLET][0].process.pid,
    }
    ends = {asyncio.create_task(until_ended(pid)): name for name, pid in processes.items()}
    try:
        ended, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        return ends[ended.pop()]
    finally:
        for end in ends:
            end.cancel()


def join(address: str) -> None:
    """Make this process a driver of a cluster that is there already.

    Its nodes need this package; our own settings of Ray Serve reach them with the job.

    Raises:
        ConnectionError: there is none at `address`.
    """
    ray.init(
        address,
        namespace=NAMESPACE,
        log_to_driver=False,
        configure_logging=False,
        runtime_env={"env_vars": joined_environment()},
    )


class _LightNode(Node):
    """A head node without the dashboard's process and with helpers that wait until they are asked for."""

    def __init__(self, log: Path, forks: Path, *arguments: Any, **options: Any) -> None:
        self._log = log
        self._forks = forks
        super().__init__(*arguments, **options)

    def _init_temp(self, *arguments: Any, **options: Any) -> None:
        """Make the session's directory, with its logs elsewhere."""
        temporary = self._ray_params.temp_dir
        assert temporary is not None, "`start_local` gives it"
        assert self._session_name is not None, "a head node has named it"
        ray_logs.attach(Path(temporary) / self._session_name, self._log)
        super()._init_temp(*arguments, **options)

    def start_gcs_server(self) -> None:
        """Start the GCS."""
        with _starting_with(_start_late):
            super().start_gcs_server()  # type: ignore[no-untyped-call]  # Ray leaves it without types

    def start_raylet(self, *arguments: Any, **options: Any) -> None:
        """Start the raylet, which must have both helpers, but not these."""
        asked: int = self._ray_params.runtime_env_agent_port  # type: ignore[assignment]  # `start_local` gave it
        # Nobody else will tell the raylet where they are, and it waits for that.
        ports = dict.fromkeys(_UNUSED_PORTS, _NOBODY) | {RUNTIME_ENV_AGENT_PORT_NAME: asked}
        for name, port in ports.items():
            persist_port(self._session_dir, self._node_id, name, port)
        with _starting_with(partial(_start_with_standbys, self._node_ip_address, asked, self._forks)):
            super().start_raylet(*arguments, **options)

    def start_api_server(self, *, include_dashboard: bool | None, raise_on_failure: bool) -> None:
        """Start nothing."""
        del include_dashboard, raise_on_failure
        self._webui_url = ""


@contextmanager
def _starting_with(start: Callable[..., Any]) -> Iterator[None]:
    """Ray starts its processes with `start` inside."""
    services.start_ray_process = start
    try:
        yield
    finally:
        services.start_ray_process = _start_ray_process


def _start_late(command: list[str], *arguments: Any, **options: Any) -> Any:
    """Ray's `start_ray_process`; timers of the process, and of all that it starts, may be late."""
    with timers.late(RAY_LATE_S):
        return _start_ray_process(command, *arguments, **options)


def _start_with_standbys(
    ip: str, port: int, forks: Path, command: list[str], *arguments: Any, **options: Any
) -> Any:
    """Ray's `start_ray_process` with another `command`."""
    light = [fork_worker(stand_in(word, ip, port), forks) for word in command]
    return _start_late(light, *arguments, **options)


def stand_in(word: str, ip: str, port: int) -> str:
    """An argument of the raylet; one that names a helper names `standby` in its place."""
    name, _, helper = word.partition("=")
    asked = {"--dashboard_agent_command": 0, "--runtime_env_agent_command": port}.get(name)
    if asked is None:
        return word
    waiting = [sys.executable, "-I", "-S", standby.__file__, ip, str(asked)]
    return f"{name}={subprocess.list2cmdline(waiting)} {helper}"


def fork_worker(word: str, forks: Path) -> str:
    """An argument of the raylet; one that says how workers are started has them forked.

    Args:
        forks: the socket of the fork server.
    """
    name, _, command = word.partition("=")
    if name != "--python_worker_command":
        return word
    asking = [sys.executable, "-I", "-S", fork_client.__file__, str(forks)]
    return f"{name}={subprocess.list2cmdline(asking)} {command}"
