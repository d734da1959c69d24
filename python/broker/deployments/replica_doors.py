"""What a replica of Ray Serve listens on besides HTTP: nothing.

Each replica starts a gRPC server for calls of other deployments. It listens on every interface and asks for
no secret, and a call is a pickle: who connects runs code. We have one deployment and no calls (Serve is told
so by `RAY_SERVE_USE_GRPC_BY_DEFAULT`), but Serve starts the server whether it is used or not. So the server
gets no port.
"""

from typing import Any

from ray.serve._private import replica


def close_grpc() -> None:
    """Have replicas that this process starts listen for no calls; call it before a replica is initialised.

    Raises:
        RuntimeError: Serve opens the door in another way, so that it would stay open.
    """
    if not callable(getattr(replica, _OPEN, None)):
        raise RuntimeError(f"Ray Serve opens the gRPC port of replicas in another way than by {_OPEN}")
    setattr(replica, _OPEN, _listen_nowhere)


_OPEN = "add_port_to_grpc_server"


def _listen_nowhere(server: Any, address: str) -> int:
    """Serve's function that binds a gRPC server; answers the number of no port."""
    del server, address
    return 0
