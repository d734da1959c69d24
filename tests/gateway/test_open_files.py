"""How many connections a gateway takes where few files may be open."""

import resource
import socket
import subprocess
import sys
from contextlib import ExitStack

import pytest

from broker.gateway.open_files import most_connections

_SERVER = """
import logging, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400))
from broker.gateway.gateway import build_server
from broker.settings import Settings
logging.basicConfig(stream=sys.stdout, format="%(message)s %(connections)s %(wanted)s")
server = build_server(Settings.load({}), host="127.0.0.1", port=0)
server.set_accounts("localhost", "demo", {"demo": None})
print(server.start(), flush=True)
sys.stdin.read()
server.stop()
"""
_HANDSHAKE = (
    b"GET /api/v1/ws HTTP/1.1\r\nHost: demo.localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


@pytest.mark.parametrize(
    ("wanted", "files", "most"),
    [
        (1_000_000, 1_048_576, 1_000_000),
        (1_000_000, 524_288, 522_752),
        (1_000_000, resource.RLIM_INFINITY, 1_000_000),
        (1_000, 2_536, 1_000),
        (1_001, 2_000, 1_000),
        (1_000_000, 3_072, 1_536),
        (10, 1, 1),
    ],
)
def test_connections_leave_room_for_other_files(wanted: int, files: int, most: int) -> None:
    assert most_connections(wanted, files) == most


def test_who_comes_over_the_limit_of_open_files_is_told_so() -> None:
    """Without the limit the gateway would be out of descriptors at 400, and answer nobody."""
    with ExitStack() as stack:
        server = stack.enter_context(
            subprocess.Popen([sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        )
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stdout.readline() == b"connections_limited_by_open_files 200 1000000\n"
        port = int(server.stdout.readline())
        for number in range(500):
            source = f"127.{number // 250}.{number % 250}.1"  # a network of its own, each of which has one
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), 20, (source, 0)))
            client.sendall(_HANDSHAKE)
            with client.makefile("rb") as answer:
                assert answer.readline()[:12] == (b"HTTP/1.1 101" if number < 200 else b"HTTP/1.1 503")
            if number >= 200:
                client.close()
        server.stdin.close()
