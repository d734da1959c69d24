"""Ports: whether one is free, and free ones for what nobody but us connects to."""

import socket

from broker.storage.errors import SetupError

_REPLICA_PORTS = range(20_000, 30_000, 100)  # below the ports that the system hands out by itself
_REPLICA_BLOCK = 100


def require_free(host: str, port: int, setting: str) -> None:
    """Raise `SetupError` unless nobody listens on `port`; `setting` names the way to another one."""
    try:
        with socket.create_server((host, port), reuse_port=False):
            pass
    except OSError as error:
        reason = "is in use" if error.errno in _IN_USE else f"cannot be used: {error.strerror}"
        raise SetupError(f"port {port} on {host} {reason}; choose another with {setting}") from None


def free_port() -> int:
    """A port of the loopback interface that nobody listens on at the moment."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def replica_ports(seed: int) -> tuple[int, int]:
    """First and last of a block of ports for HTTP replicas; by `seed`, so that instances seldom meet.

    Where they do, Ray Serve tries the next port of the block.
    """
    first = _REPLICA_PORTS[seed % len(_REPLICA_PORTS)]
    return first, first + _REPLICA_BLOCK - 1


_IN_USE = {48, 98}  # EADDRINUSE on macOS and on Linux
