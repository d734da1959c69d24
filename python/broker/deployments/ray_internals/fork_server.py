"""Starts the workers of our own Ray by forking a process that has already imported everything.

A worker of Ray's is a Python that imports Ray, twice, and then what its actor needs: one to two seconds of a
core, and memory of its own for all of it. A fork takes some milliseconds and shares that memory. So the
raylet, in the place of a worker, runs `fork_client`, which hands the command, the environment and the
standard streams to this process and ends. What is forked here is the worker: it goes on with the command's
own script, and the raylet learns its process id when it registers.

Protocol, on a Unix socket in the instance's scratch directory: one message a connection, the JSON of a
`fork_client.ForkRequest`, with the three streams beside its first byte (SCM_RIGHTS, unix(7)); the answer is
one byte, once the worker exists.

Only a process with one thread may fork and go on in Python, so nothing that is imported here may start one.
Nor may it draw from Ray's source of random ids: all workers would go on with the same ones.
Ray reads two variables when it is imported: the job, which is always the same here, and the process that a
worker ends with, which is the conductor in the place of the raylet: workers outlive a raylet that dies.

The conductor needs most of these modules too. So it imports them, once, and the first server is its fork,
made before it has a second thread; one that takes the first one's place is a program of its own. What Ray has
read of the two variables stays in the conductor, which is a driver. A driver has its job from the GCS all the
same. It looks at the second one when it loses the raylet, and ends if that process is dead, which is itself
here; without the variable it would look for its parent (Ray's `raylet_ipc_client.cc`). A conductor whose
parent is dead stops anyway, at the end of its input.

Standard input comes from the conductor: its end means that there is nobody left to fork for.

Names used: `ray._private.workers.default_worker` and modules of `ray.serve._private`, to import them;
`ActorClassID` of `ray.actor`; `setproctitle` of `ray._raylet`, and `SPT_NOENV`, which it reads; `RAY_JOB_ID`
and `RAY_RAYLET_PID`, which Ray reads when it is imported.
Probe: the imports, when the server starts.
Fall-back: a server that has ended is started again; meanwhile the commands run as they were written.
Gain: a worker in milliseconds and not in one to two seconds of a core; what died was away for two to nine.
With a first server that is a fork, `broker up` takes 11 s of a core until it is ready, and not 13 (means of
six starts), and 45 MB less.
"""

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, Protocol

from broker import timers
from broker.deployments.ray_internals import fork_client, ingress_restart, serve_clock, serve_pace

_MODULES = (
    # What libraries load with the first use of something.
    "anyio._backends._asyncio",
    "cryptography.hazmat.backends.openssl.backend",
    "jinja2",
    "pydantic._internal._dataclasses",
    "pydantic.v1",
    "ray._common.pydantic_compat",
    "ray._private.arrow_serialization",
    "ray._private.authentication.grpc_authentication_client_interceptor",
    "ray._private.authentication.grpc_authentication_server_interceptor",
    "uvicorn.lifespan.off",
    "uvicorn.protocols.websockets.auto",
    # What workers are, and what our own code loads when it starts.
    "ray._private.workers.default_worker",
    "ray.serve._private.controller",
    "ray.serve._private.haproxy",
    "ray.serve._private.proxy",
    "ray.serve._private.replica",
    "broker.voting.counting.actor",
    "broker.voting.counting.counter",
    "broker.deployments.compose",
    "broker.deployments.connect_door",
    "broker.deployments.faces",
    "broker.deployments.gateway_watch",
    "broker.deployments.gateways",
    "broker.deployments.health",
    "broker.deployments.images",
    "broker.deployments.node_address",
    "broker.deployments.ray_internals.replica_listeners",
    "broker.deployments.relaying",
    "broker.deployments.serve_app",
    "broker.gateway.gateway",
    "broker.images.account_rules",
    "broker.images.service",
    "broker.resources.catalogue",
    "broker.owners.actor",
    "broker.owners.linked_feed",
    "broker.owners.owner",
    "broker.owners.relay",
    "broker.rest.app",
    "broker.rest.images",
    "broker.rpc.listener",
    "broker.storage.image_rules",
)
SOCKET = "fork"
"""Where the server listens, in the directory for sockets."""

RAY_LATE_S = 0.3
"""How late timers of Ray's processes may be. With more it takes longer to start, and to restart parts."""

_REQUEST_S = 5.0  # for a request to arrive whole
_WAITING = 64  # workers that may be asked for while the modules are imported
_PEER = struct.Struct("3i")  # `struct ucred`: process, user, group (unix(7))
_PROGRAM = "broker.deployments.ray_internals.fork_server"


class ServerProcess(Protocol):
    """A server, seen from the process that started it: what of `subprocess.Popen` is asked of one."""

    @property
    def pid(self) -> int:
        """Its process id, its own until somebody has waited for it."""

    def kill(self) -> None:
        """End it at once, if it has not ended. Any thread may call it at any time."""

    def wait(self) -> int:
        """Return its exit status when it has ended. Any threads may call it at once, and again."""


class ForkedServer:
    """A server that is a fork of this process."""

    def __init__(self, pid: int, stdin: int) -> None:
        """Take over `stdin`, the writing end of the server's standard input."""
        self.pid = pid
        self._stdin = os.fdopen(stdin, "wb")  # closed with this object at the latest
        self._process = os.pidfd_open(pid)  # names this process for good, also when its number is another's
        self._lock = threading.Lock()
        self._status: int | None = None

    def kill(self) -> None:
        """End it at once, if it has not ended. Any thread may call it at any time."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, signal.SIGKILL)

    def wait(self) -> int:
        """Return its exit status when it has ended. Any threads may call it at once, and again."""
        # Nobody holds the lock meanwhile, and nobody takes the status from the others.
        select.select([self._process], [], [])
        with self._lock:
            if self._status is None:
                self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
                self._stdin.close()
            return self._status


def start_fork_server(path: Path) -> ServerProcess:
    """Start the server as a program; what asks at `path` waits until it has imported everything.

    Its workers live for as long as this process.
    """
    with _listening(path) as door, timers.late(RAY_LATE_S):
        return subprocess.Popen(
            [sys.executable, "-m", _PROGRAM, str(door.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[door.fileno()],
            env=os.environ | _worker_variables(),
        )


def import_and_fork(path: Path) -> ServerProcess:
    """Import all that workers need into this process, and fork the server, which listens at `path`.

    Its workers live for as long as this process. Call it before this process has a second thread, has
    imported Ray, or has opened what workers must not hold.
    """
    assert "ray" not in sys.modules, "it has read the variables that are for workers"
    os.environ.update(_worker_variables())
    try:
        _import_all()
    finally:
        for name in _worker_variables():
            del os.environ[name]
    gc.freeze()  # else looking for garbage would write to all that memory here, and end the sharing
    with _listening(path) as door, timers.late(RAY_LATE_S):
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            _become_server(door, reading, writing)
        os.close(reading)
        return ForkedServer(pid, writing)


def main() -> None:
    """Import, then serve. Argument: the listening socket."""
    door = socket.socket(fileno=int(sys.argv[1]))
    _import_all()
    _serve(door)


@contextmanager
def _listening(path: Path) -> Iterator[socket.socket]:
    """A socket at `path`, also where that of a former server is."""
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(path))
        door.listen(_WAITING)
        yield door


def _worker_variables() -> dict[str, str]:
    """What Ray reads at its import, in a server that ends with this process."""
    return {"RAY_JOB_ID": fork_client.JOB, "RAY_RAYLET_PID": str(os.getpid())}


def _become_server(door: socket.socket, reading: int, writing: int) -> NoReturn:
    """Go on as the server of the process that forked this one.

    Args:
        reading: what is to be standard input.
        writing: its other end, which is for the other process alone.
    """
    status = 1
    try:
        os.close(writing)
        # Who reads the other process's output, or writes its input, must see those end with that process.
        os.dup2(reading, sys.stdin.fileno())
        os.close(reading)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        _take_title(f"{sys.executable} -m {_PROGRAM}")
        _serve(door)
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def _take_title(title: str) -> None:
    """Have `ps` show this process as `title`, and not as the one that it was forked from."""
    raylet: Any = importlib.import_module("ray._raylet")
    # Else titles, also those of workers, would overwrite the environment, and in it the mark by which all
    # processes of an instance are found (`processes`).
    os.environ["SPT_NOENV"] = "1"
    raylet.setproctitle(title)
    del os.environ["SPT_NOENV"]


def _serve(door: socket.socket) -> None:
    """Fork for each request until standard input ends."""
    serve_clock.keep_steady()
    serve_pace.hasten()
    ingress_restart.hasten()
    # Looking for garbage would write to all memory, and so end the sharing.
    gc.disable()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the workers
    while door in select.select([door, sys.stdin.fileno()], [], [])[0]:
        _answer(door)


def _import_all() -> None:
    """Import, and leave Ray's source of random ids unused: all workers would draw the same ones."""
    actor: Any = importlib.import_module("ray.actor")
    ids = actor.ActorClassID
    # What Ray Serve's modules ask it for, a new id for each class of actors.
    actor.ActorClassID = SimpleNamespace(from_random=lambda: ids(os.urandom(ids.size())))
    for name in _MODULES:
        importlib.import_module(name)
    actor.ActorClassID = ids


def _answer(door: socket.socket) -> None:
    caller, _ = door.accept()
    with caller:
        caller.settimeout(_REQUEST_S)
        try:
            request, streams = _receive(caller)
        except (OSError, ValueError):
            return  # who asked runs the command itself
        if os.fork() == 0:
            door.close()
            caller.close()
            _become_worker(request, streams)
        for stream in streams:
            os.close(stream)
        try:
            caller.sendall(b"+")
        except OSError:
            return


def _receive(caller: socket.socket) -> tuple[fork_client.ForkRequest, list[int]]:
    """A request with its streams. Raises OSError, and ValueError."""
    user = _PEER.unpack(caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[1]
    if user != os.geteuid():
        raise PermissionError(user)
    message, streams, _, _ = socket.recv_fds(caller, 65_536, 3)
    while more := caller.recv(65_536):
        message += more
    return json.loads(message), streams


def _become_worker(request: fork_client.ForkRequest, streams: list[int]) -> NoReturn:
    """Go on as the worker."""
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    sys.argv, environment = request
    os.environ.clear()
    os.environ.update(environment)
    gc.enable()
    status = 1
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
