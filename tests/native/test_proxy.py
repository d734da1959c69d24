"""The native server behind a front door that begins its connections with a PROXY header."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests import proxy_header
from tests.native.harness import Client, Gateway, connect, wait_for

DOOR = "127.0.0.10"
BOTH = pytest.mark.parametrize("version", [proxy_header.line, proxy_header.binary])
REQUEST = b"GET /api/v1/ws HTTP/1.1\r\nHost: broker.test\r\n\r\n"


@pytest.fixture
def behind(start: Callable[..., Gateway]) -> Gateway:
    return start(proxy_protocol=[DOOR], trusted_proxies=[DOOR, "10.0.0.0/8"], connections_per_address=1)


@contextmanager
def joined(gateway: Gateway, header: bytes, **options: object) -> Iterator[Client]:
    """A client whose connection comes from the front door."""
    with opened(gateway) as raw:
        raw.sendall(header)
        with connect(gateway.url(), sock=raw, compression=None, proxy=None, **options) as client:
            yield Client(client)


def opened(gateway: Gateway, source: str = DOOR) -> socket.socket:
    return socket.create_connection(("127.0.0.1", gateway.port), 20, (source, 0))


def answer_to(gateway: Gateway, sent: bytes, source: str = DOOR) -> bytes:
    """All that comes until the gateway closes, if only with a reset."""
    with opened(gateway, source) as raw:
        raw.sendall(sent)
        told = b""
        try:
            while part := raw.recv(65_536):
                told += part
        except ConnectionResetError:
            pass
        return told


def address_of(gateway: Gateway, client: Client) -> str:
    """The address that the application is told of a client."""
    client.send("ask")
    return str(gateway.upcall()[5])


@BOTH
def test_the_address_of_the_header_is_the_clients(behind: Gateway, version: Callable[[str], bytes]) -> None:
    for source in ("192.0.2.7", "2001:db8::7", "127.0.0.2"):
        with joined(behind, version(source), additional_headers={"X-Forwarded-For": "6.6.6.6"}) as client:
            assert address_of(behind, client) == source
    with joined(behind, version("::ffff:192.0.2.7")) as client:
        assert address_of(behind, client) == "192.0.2.7"


@BOTH
def test_the_address_of_the_header_is_limited(behind: Gateway, version: Callable[[str], bytes]) -> None:
    with joined(behind, version("192.0.2.7")):
        answer = answer_to(behind, version("192.0.2.7") + REQUEST)
        assert answer.startswith(b"HTTP/1.1 429 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"] == "slow_down"
        with joined(behind, version("192.0.2.8")) as other:
            assert other.quiet()
    wait_for(lambda: behind.server.stats()["connections"] == 0)
    with joined(behind, version("192.0.2.7")) as again:
        assert again.quiet()


def test_a_proxy_behind_another_one_names_the_client_in_its_request(behind: Gateway) -> None:
    told = {"X-Forwarded-For": "6.6.6.6, 192.0.2.8"}
    for header in (proxy_header.binary("10.1.2.3"), proxy_header.line("10.1.2.3"), proxy_header.LOCAL):
        with joined(behind, header, additional_headers=told) as client:
            assert address_of(behind, client) == "192.0.2.8"


def test_a_proxy_that_speaks_for_itself_is_not_limited(behind: Gateway) -> None:
    with joined(behind, proxy_header.LOCAL) as one, joined(behind, b"PROXY UNKNOWN\r\n") as other:
        assert address_of(behind, one) == address_of(behind, other) == DOOR


@BOTH
def test_a_header_may_come_in_pieces(behind: Gateway, version: Callable[[str], bytes]) -> None:
    with opened(behind) as raw:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in version("192.0.2.7"):
            raw.sendall(bytes([byte]))
        with connect(behind.url(), sock=raw, compression=None, proxy=None) as client:
            assert address_of(behind, Client(client)) == "192.0.2.7"


@BOTH
@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.11"])
def test_a_header_from_anybody_else_is_refused(
    behind: Gateway, version: Callable[[str], bytes], source: str
) -> None:
    assert answer_to(behind, version("192.0.2.7") + REQUEST, source).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("fault", proxy_header.MALFORMED)
def test_a_malformed_header_closes_the_connection(behind: Gateway, fault: str) -> None:
    refused = behind.server.stats()["refused"]
    assert answer_to(behind, proxy_header.MALFORMED[fault] + REQUEST) == b""
    assert behind.server.stats()["refused"] == refused + 1


def test_a_header_that_does_not_come_has_a_deadline(start: Callable[..., Gateway]) -> None:
    gateway = start(proxy_protocol=[DOOR], handshake_s=0.3)
    for part in (b"", b"PROXY TCP4 192", proxy_header.SIGNATURE):
        assert answer_to(gateway, part) == b""


def test_connections_that_are_refused_leave_nothing(behind: Gateway) -> None:
    for _ in range(3):
        assert answer_to(behind, b"GET / HTTP/1.1\r\n") == b""
    wait_for(lambda: behind.server.stats()["connections"] == 0)
