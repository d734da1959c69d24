"""Ports: whether one is free, and free ones for internal use."""

import random
import socket
from collections.abc import Collection, Iterator
from itertools import cycle

from broker.deployments.port_locks import PortLocks
from broker.setup_error import SetupError

_REPLICA_PORTS = range(20_000, 30_000, 100)  # below the ports that the system hands out by itself
_REPLICA_BLOCK = 100
# Linux gives away 32,768 and more, also to connections that go out. Two ranges, so that no ingress is given a
# port on which Serve's own proxy, of this or another instance, listens a moment later: both would listen
# there without an error (SO_REUSEPORT), and the proxy would answer half of the connections, with 403.
_INTERNAL_PORTS = range(30_000, 30_500)
_FREE_PORTS = range(30_500, 32_768)
_turns = cycle(random.sample(_FREE_PORTS, len(_FREE_PORTS)))
_internal_turns = cycle(random.sample(_INTERNAL_PORTS, len(_INTERNAL_PORTS)))
_locks = PortLocks()


def require_free(host: str, port: int, setting: str) -> None:
    """Raise `SetupError` unless nobody listens on `port`; `setting` names the way to another one."""
    try:
        with socket.create_server((host, port), reuse_port=False):
            pass
    except OSError as error:
        reason = "is in use" if error.errno in _IN_USE else f"cannot be used: {error.strerror}"
        raise SetupError(f"port {port} on {host} {reason}; choose another with {setting}") from None


def free_port() -> int:
    """A port of the loopback interface that nobody listens on at the moment.

    It is one that the system gives to nobody by itself, and no process of this user is given it too, so it
    stays free until whoever asked listens on it, which may be many seconds later. Raises OSError when none is
    left.
    """
    return _find(_turns, _FREE_PORTS, ())


def internal_port(public: Collection[int] = ()) -> int:
    """As `free_port`, for a part that only this instance's other parts connect to.

    Args:
        public: the ports that the instance has, or is about to have, for others.
    """
    return _find(_internal_turns, _INTERNAL_PORTS, public)


def _find(turns: Iterator[int], ports: range, excluded: Collection[int]) -> int:
    for port, _ in zip(turns, ports, strict=False):
        if port in excluded or not _locks.take(port):
            continue
        # Without SO_REUSEADDR, as Serve's proxy binds: connections that ended in the last minute keep it out.
        with socket.socket() as strict:
            try:
                strict.bind(("127.0.0.1", port))
            except OSError as error:
                if error.errno not in _IN_USE:
                    raise
            else:
                return port
    raise OSError(f"no port of {ports.start} to {ports.stop - 1} is free")


def replica_ports(seed: int) -> tuple[int, int]:
    """First and last of a block of ports for HTTP replicas; by `seed`, so that instances seldom meet.

    Where they do, Ray Serve tries the next port of the block.
    """
    first = _REPLICA_PORTS[seed % len(_REPLICA_PORTS)]
    return first, first + _REPLICA_BLOCK - 1


_IN_USE = {48, 98}  # EADDRINUSE on macOS and on Linux
