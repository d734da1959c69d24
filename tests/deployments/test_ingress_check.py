"""The looks at the doors of the ingress before and after a start: real sockets, and HAProxy as it runs."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from broker.deployments import ingress_check
from broker.deployments.ports import free_port
from broker.settings import Settings
from broker.setup_error import SetupError
from tests.deployments.ingress_stage import KEY, Ingress, Replica, running_ingress


@pytest.fixture(scope="module")
def ingress() -> Iterator[Ingress]:
    replica = Replica("one")
    with running_ingress(replica) as ingress:
        yield ingress
    replica.end()


async def check(port: int, ops_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingress_check, "_SOON_S", 0.0)
    await ingress_check.require_our_ingress(
        Settings(ingress_key=KEY, http_port=port, ops_port=ops_port, bind_host="0.0.0.0")
    )


def test_a_start_looks_whether_both_doors_are_ours(ingress: Ingress, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(check(ingress.port, ingress.ops_port, monkeypatch))
    others = [
        (free_port(), ingress.ops_port, "nothing answers clients"),
        (ingress.port, free_port(), "nothing answers operators"),
        (ingress.ops_port, ingress.ops_port, "wrong for clients"),
        (ingress.port, ingress.port, "wrong for operators"),
    ]
    for port, ops_port, reason in others:
        with pytest.raises(SetupError, match=f"not the product's .*{reason}"):
            asyncio.run(check(port, ops_port, monkeypatch))
    with socket.create_server(("127.0.0.1", 0)) as other:  # like Ray's own frontend
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
        threading.Thread(target=lambda: answer_once(other, answer), daemon=True).start()
        with pytest.raises(SetupError, match="something else answers clients"):
            asyncio.run(check(other.getsockname()[1], ingress.ops_port, monkeypatch))


def test_ports_that_other_programs_have_are_refused_before_a_start(
    ingress: Ingress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingress_check, "_LOOK_S", 0.0)
    monkeypatch.setattr(ingress_check, "_ANSWER_S", 0.2)

    def check(port: int, ops_port: int, **more: object) -> None:
        settings = Settings(
            ray_address="127.0.0.1:1", bind_host="node", ops_host="node", http_port=port, ops_port=ops_port
        )
        asyncio.run(ingress_check.require_not_taken(replace(settings, **more), ["127.0.0.1"]))

    check(ingress.port, ingress.ops_port)  # of an earlier start
    check(free_port(), free_port())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        taken = silent.getsockname()[1]
        named = f"^port {taken} of the node 127.0.0.1 is in use; choose another with "
        with pytest.raises(SetupError, match=f"{named}--http-port$"):
            check(taken, free_port())
        with pytest.raises(SetupError, match=f"{named}BROKER_OPS_PORT$"):
            check(free_port(), taken)
        check(taken, free_port(), bind_host="192.0.2.1")  # not an address of every node
        check(taken, free_port(), proxy_protocol=("192.0.2.0/24",))  # we may have to send a header


def test_a_look_reads_no_more_of_a_stranger_than_a_reply_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingress_check, "_TRIES", 1)
    monkeypatch.setattr(ingress_check, "_ANSWER_S", 60.0)
    sent = 0

    def flood(server: socket.socket) -> None:
        nonlocal sent
        server.accept()[0].close()  # the look whether somebody is there
        peer, _ = server.accept()
        with peer, suppress(OSError):
            while sent < 1 << 30:
                sent += peer.send(bytes(1 << 20))

    with socket.create_server(("127.0.0.1", 0)) as server:
        flooding = threading.Thread(target=flood, args=(server,), daemon=True)
        flooding.start()
        assert asyncio.run(ingress_check._is_taken("127.0.0.1", server.getsockname()[1]))
        flooding.join(60)
    assert sent < 64 << 20  # what is read, and what the buffers of both sockets hold


def answer_once(server: socket.socket, answer: bytes) -> None:
    """Take one connection, read what comes, answer."""
    peer, _ = server.accept()
    with peer:
        peer.recv(65_536)
        peer.sendall(answer)
