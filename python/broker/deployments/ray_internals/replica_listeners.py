"""Where a replica of Ray Serve listens: HTTP only, and only on the addresses that HAProxy uses.

Each replica starts a gRPC server for calls of other deployments. It listens on every interface and asks for
no secret, and a call is a pickle: who connects runs code. We have one deployment and no calls (Serve is told
so by `RAY_SERVE_USE_GRPC_BY_DEFAULT`), but Serve starts the server whether it is used or not. So the server
gets no port.

HAProxy calls replicas of its own node at 127.0.0.1 and those of other nodes at the addresses of these. Serve
gives all replicas of a cluster one address to listen on, which could only be every interface. Ours listen on
those two.

On its own node a replica also listens at a socket file in the directory of that node's ingress, which only we
may open. HAProxy prefers it (`ingress_start`): a request over TCP costs the kernel twice as much.

Names used: `add_port_to_grpc_server` and `start_asgi_http_server` of `ray.serve._private.replica`;
of the `uvicorn.Server` that the second one returns `startup`, `servers`, `config`, `server_state` and
`lifespan`.
Probe: both functions here, before a replica is initialised.
Fall-back: none for the addresses; a replica that would listen elsewhere does not start. Without its socket
file it is reached by TCP.
Gain: nobody who reaches a node runs code in a replica; by the file a short request takes 20 % less time of
HAProxy and 25 % less of a bare replica.
"""

import asyncio
import logging
import socket
from pathlib import Path
from typing import Any

from ray.serve._private import replica

from broker.deployments.ray_internals.haproxy import socket_file

_log = logging.getLogger(__name__)


def close_grpc() -> None:
    """Have replicas that this process starts listen for no calls; call it before a replica is initialised.

    Raises:
        RuntimeError: Serve opens the door in another way, so that it would stay open.
    """
    if not callable(getattr(replica, _OPEN, None)):
        raise RuntimeError(f"Ray Serve no longer opens the gRPC port of replicas by {_OPEN}")
    setattr(replica, _OPEN, _listen_nowhere)


def listen_on_node(address: str) -> None:
    """Have the HTTP servers of replicas that this process starts listen at `address` and at 127.0.0.1.

    Call it before a replica is initialised.

    Raises:
        RuntimeError: Serve starts them in another way, so that they would listen elsewhere.
    """
    start: Any = getattr(replica, _START, None)
    if not callable(start):
        raise RuntimeError(f"Ray Serve no longer starts the HTTP server of replicas by {_START}")

    async def start_on_both(app: Any, options: Any, **others: Any) -> Any:
        own = options.model_copy(update={"host": _LOOPBACK})
        if address == _LOOPBACK:
            return await start(app, own, **others)
        door = _open_door(address, options.port)
        try:
            task, server = await start(app, own, **others)
        except BaseException:
            door.close()
            raise
        startup = server.startup

        async def startup_on_both(sockets: Any = None) -> None:
            await startup([*(sockets or ()), door])

        server.startup = startup_on_both  # its task begins when this has come back
        return task, server

    setattr(replica, _START, start_on_both)


def listen_at_file(directory: Path | None) -> None:
    """Have the HTTP servers of replicas that this process starts listen at a socket file, too.

    Call it before a replica is initialised.

    Args:
        directory: of the ingress of this node; None where HAProxy does not run.

    Raises:
        RuntimeError: Serve starts them in another way.
    """
    if directory is None:
        return
    start: Any = getattr(replica, _START, None)
    if not callable(start):
        raise RuntimeError(f"Ray Serve no longer starts the HTTP server of replicas by {_START}")

    async def start_at_file(app: Any, options: Any, **others: Any) -> Any:
        task, server = await start(app, options, **others)
        try:
            # Only now is the port ours, and so the file, which one that was killed may have left.
            door = _open_file(directory / socket_file(options.port))
        except OSError as error:
            _log.warning("replica_has_no_socket_file", extra={"cause": str(error)})
            return task, server
        startup = server.startup

        async def startup_at_file(sockets: Any = None) -> None:
            await startup(sockets)
            server.servers.append(
                await asyncio.get_running_loop().create_unix_server(
                    lambda: server.config.http_protocol_class(
                        config=server.config,
                        server_state=server.server_state,
                        app_state=server.lifespan.state,
                    ),
                    sock=door,
                    backlog=server.config.backlog,
                )
            )

        server.startup = startup_at_file  # its task begins when this has come back
        return task, server

    setattr(replica, _START, start_at_file)


def _open_file(path: Path) -> socket.socket:
    """A socket that is bound to `path`; who connects is refused until the server listens.

    Raises OSError, and leaves nothing there.
    """
    path.unlink(missing_ok=True)
    door = socket.socket(socket.AF_UNIX)
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        door.bind(str(path))
        path.chmod(0o600)
    except OSError:
        door.close()
        path.unlink(missing_ok=True)
        raise
    return door


def _open_door(address: str, port: int) -> socket.socket:
    """A socket that is bound; Serve knows by the error that a port is taken, and tries another one."""
    door = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    try:
        door.bind((address, port))
    except OSError as error:
        door.close()
        raise RuntimeError(f"{address}:{port} cannot be bound: {error.strerror}") from error
    return door


_OPEN = "add_port_to_grpc_server"
_START = "start_asgi_http_server"
_LOOPBACK = "127.0.0.1"


def _listen_nowhere(server: Any, address: str) -> int:
    """Serve's function that binds a gRPC server; answers the number of no port."""
    del server, address
    return 0
