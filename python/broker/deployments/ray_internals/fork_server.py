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

Standard input comes from the conductor: its end means that there is nobody left to fork for.

Names used: `ray._private.workers.default_worker` and modules of `ray.serve._private`, to import them;
`ActorClassID` of `ray.actor`; `RAY_JOB_ID` and `RAY_RAYLET_PID`, which Ray reads when it is imported.
Probe: the imports, when the server starts.
Fall-back: a server that has ended is started again; meanwhile the commands run as they were written.
Gain: a worker in milliseconds and not in one to two seconds of a core; what died was away for two to nine.
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
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from broker.deployments.ray_internals import fork_client, ingress_restart, serve_clock, serve_pace

_MODULES = (
    "ray._private.workers.default_worker",
    "ray.serve._private.controller",
    "ray.serve._private.haproxy",
    "ray.serve._private.proxy",
    "ray.serve._private.replica",
    "broker.voting.counting.actor",
    "broker.deployments.compose",
    "broker.deployments.faces",
    "broker.deployments.gateways",
    "broker.deployments.health",
    "broker.deployments.images",
    "broker.deployments.node_address",
    "broker.deployments.ray_internals.replica_listeners",
    "broker.deployments.serve_app",
    "broker.gateway.gateway",
    "broker.images.account_rules",
    "broker.images.service",
    "broker.resources.catalogue",
    "broker.owners.actor",
    "broker.owners.linked_feed",
    "broker.rest.app",
    "broker.rest.images",
    "broker.storage.image_rules",
)
_REQUEST_S = 5.0  # for a request to arrive whole
_WAITING = 64  # workers that may be asked for while the modules are imported
_PEER = struct.Struct("3i")  # `struct ucred`: process, user, group (unix(7))


def start_fork_server(path: Path) -> "subprocess.Popen[bytes]":
    """Start the server; what asks at `path`, where no file is yet, waits until it has imported everything.

    Its workers live for as long as this process.
    """
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(path))
        door.listen(_WAITING)
        return subprocess.Popen(
            [sys.executable, "-m", "broker.deployments.ray_internals.fork_server", str(door.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[door.fileno()],
            env=os.environ | {"RAY_JOB_ID": fork_client.JOB, "RAY_RAYLET_PID": str(os.getpid())},
        )


def main() -> None:
    """Import, then fork for each request until standard input ends. Argument: the listening socket."""
    door = socket.socket(fileno=int(sys.argv[1]))
    _import_all()
    serve_clock.keep_steady()
    serve_pace.hasten()
    ingress_restart.hasten()
    # Looking for garbage would write to all memory, and so end the sharing.
    gc.disable()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the workers
    while door in select.select([door, sys.stdin.fileno()], [], [])[0]:
        _serve(door)


def _import_all() -> None:
    """Import, and leave Ray's source of random ids unused: all workers would draw the same ones."""
    actor: Any = importlib.import_module("ray.actor")
    ids = actor.ActorClassID
    # What Ray Serve's modules ask it for, a new id for each class of actors.
    actor.ActorClassID = SimpleNamespace(from_random=lambda: ids(os.urandom(ids.size())))
    for name in _MODULES:
        importlib.import_module(name)
    actor.ActorClassID = ids


def _serve(door: socket.socket) -> None:
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


def _become_worker(request: fork_client.ForkRequest, streams: list[int]) -> None:
    """Go on as the worker; never returns."""
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
