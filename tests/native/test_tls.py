"""The native server with a certificate: every connection speaks TLS."""

import asyncio
import hashlib
import hmac
import json
import os
import re
import socket
import ssl
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from websockets.asyncio.client import ClientConnection, connect

from tests import proxy_header
from tests.fetching.upstream import make_certificate
from tests.native.harness import PROGRAM, WAIT_S, Client, Gateway, push, wait_for

HOST = "broker.test"
DOOR = "127.0.0.10"
REQUEST = f"GET /api/v1/ws HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()
STREAM = f"GET /api/v1/programs/final/events/stream HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()
VERSIONS = pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
Start = Callable[..., Gateway]
Join = Callable[..., Client]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A certificate and its key in one file, as many proxies want them too."""
    return make_certificate(tmp_path, HOST)


def pair(file: Path) -> tuple[bytes, bytes]:
    return file.read_bytes(), file.read_bytes()


def opened(start: Start, file: Path, **settings: object) -> Gateway:
    """A server with the open, public log of one program."""
    gateway = start(certificate=pair(file), **settings)
    gateway.server.open_log(PROGRAM, "e1", 0, True)
    return gateway


def trusting(file: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(file))


class OneThread:
    """A WebSocket that is read and written by one thread, which OpenSSL's sessions require.

    The client with a thread for reading and another for writing lost three of a thousand requests.
    """

    def __init__(self, portal: BlockingPortal, connection: ClientConnection) -> None:
        self._portal = portal
        self._connection = connection

    def send(self, message: str) -> None:
        self._portal.call(self._connection.send, message)

    def recv(self, timeout: float) -> str | bytes:
        return self._portal.call(self._receive, timeout)

    def close(self) -> None:
        self._portal.call(self._connection.close)

    async def _receive(self, timeout: float) -> str | bytes:
        async with asyncio.timeout(timeout):
            return await self._connection.recv()


@pytest.fixture
def join() -> Iterator[Join]:
    """Join a server as a client; all leave after the test."""
    with start_blocking_portal() as portal, ExitStack() as clients:

        def join(
            gateway: Gateway,
            context: ssl.SSLContext,
            query: str = "",
            dial: Callable[[], socket.socket] | None = None,
            **options: Any,
        ) -> Client:
            async def dialled() -> ClientConnection:
                return await connect(
                    gateway.url(query),
                    ssl=context,
                    server_hostname=HOST,
                    sock=dial() if dial else None,
                    **{"compression": None, "proxy": None, **options},
                )

            joined = OneThread(portal, portal.call(dialled))
            clients.callback(joined.close)
            return Client(joined)

        yield join


def dialled(
    gateway: Gateway, context: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> ssl.SSLSocket:
    """A connection that has finished its handshake. It tells an end from a cut."""
    raw = socket.create_connection(("127.0.0.1", gateway.port), WAIT_S)
    return context.wrap_socket(raw, server_hostname=HOST, session=session, suppress_ragged_eofs=False)


def outcomes(gateway: Gateway) -> dict[str, int]:
    return dict(gateway.server.stats()["tls"])


def answer_to(gateway: Gateway, sent: bytes) -> bytes:
    """All that the server says to these bytes, which are the first of a connection, until it ends it."""
    told = b""
    with socket.create_connection(("127.0.0.1", gateway.port), WAIT_S) as raw:
        raw.sendall(sent)
        while part := raw.recv(65_536):
            told += part
    return told


class Raw:
    """A reader of events with TLS 1.3 that can send records as no library does, behind its request."""

    def __init__(self, gateway: Gateway, file: Path) -> None:
        context = trusting(file)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.keylog_filename = str(file.with_name("secrets"))
        self.stream = dialled(gateway, context)
        assert self.stream.cipher() == ("TLS_AES_256_GCM_SHA384", "TLSv1.3", 256)
        self.stream.sendall(STREAM)
        read_until(self.stream, b"text/event-stream")
        self.sent = 1
        secrets = dict(line.split()[::2] for line in file.with_name("secrets").read_text().splitlines()[1:])
        secret = bytes.fromhex(secrets["CLIENT_TRAFFIC_SECRET_0"])
        self.key, self.nonce = expanded(secret, b"key", 32), expanded(secret, b"iv", 12)

    def record(self, content: bytes, kind: int, padding: int = 0) -> bytes:
        """The next record of the client."""
        inner = content + bytes([kind]) + bytes(padding)
        head = b"\x17\x03\x03" + (len(inner) + 16).to_bytes(2, "big")
        nonce = int.from_bytes(self.nonce, "big") ^ self.sent
        self.sent += 1
        return head + AESGCM(self.key).encrypt(nonce.to_bytes(12, "big"), inner, head)

    def send(self, data: bytes) -> None:
        """Past the library."""
        with socket.socket(fileno=os.dup(self.stream.fileno())) as raw:
            raw.sendall(data)


def expanded(secret: bytes, label: bytes, size: int) -> bytes:
    """HKDF-Expand-Label of RFC 8446, section 7.1, for one block."""
    label = b"tls13 " + label
    info = size.to_bytes(2, "big") + bytes([len(label)]) + label + b"\0\1"
    return hmac.digest(secret, info, hashlib.sha384)[:size]


def read_until(stream: ssl.SSLSocket, marker: bytes) -> bytes:
    told = b""
    while marker not in told:
        part = stream.recv(65_536)
        assert part, told
        told += part
    return told


@VERSIONS
@pytest.mark.parametrize("query", ["", "?batch=true"])
@pytest.mark.parametrize("compression", [None, "deflate"])
def test_a_viewer_follows_over_tls(
    start: Start, join: Join, file: Path, version: ssl.TLSVersion, query: str, compression: str | None
) -> None:
    gateway = opened(start, file)
    context = trusting(file)
    context.minimum_version = context.maximum_version = version
    client = join(gateway, context, query, compression=compression)
    assert client.subscribe()["seq"] == 0
    for seq in range(1, 4):
        gateway.server.append(PROGRAM, [push(seq, pad=20_000)])
        message = client.receive()
        (told,) = message if isinstance(message, list) else [message]
        assert told["params"]["seq"] == seq
    assert outcomes(gateway) == {"full": 1, "resumed": 0, "failed": 0}


def test_frames_of_a_broadcast_reach_many_viewers(start: Start, join: Join, file: Path) -> None:
    gateway = opened(start, file)
    context = trusting(file)
    clients = [join(gateway, context) for _ in range(30)]
    for client in clients:
        client.subscribe()
    for seq in range(1, 51):
        gateway.server.append(PROGRAM, [push(seq)])
    for client in clients:
        assert client.seqs(50) == list(range(1, 51))


@VERSIONS
def test_one_that_reads_late_gets_all_of_it_in_order(
    start: Start, join: Join, file: Path, version: ssl.TLSVersion
) -> None:
    """Sockets fill up within records, which have to go on where they were cut."""
    gateway = opened(start, file, lag_bytes=1 << 30, recovery_entries=10)
    context = trusting(file)
    context.minimum_version = context.maximum_version = version

    def dial() -> socket.socket:
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8_192)
        raw.connect(("127.0.0.1", gateway.port))
        return raw

    late = join(gateway, context, dial=dial, max_queue=1, max_size=None)
    late.subscribe()
    other = join(gateway, context)
    other.subscribe()
    for seq in range(1, 301):
        gateway.server.append(PROGRAM, [push(seq, pad=30_000 + seq)])
        assert other.seqs(1) == [seq]
    assert late.seqs(300) == list(range(1, 301))
    assert late.quiet()


def test_input_may_come_byte_by_byte(start: Start, file: Path) -> None:
    gateway = opened(start, file)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = trusting(file).wrap_bio(incoming, outgoing, server_hostname=HOST)
    with socket.create_connection(("127.0.0.1", gateway.port), WAIT_S) as raw:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def tried(step: Callable[[], object]) -> object:
            while True:
                try:
                    return step()
                except ssl.SSLWantReadError:
                    for byte in outgoing.read():
                        raw.send(bytes([byte]))
                    incoming.write(raw.recv(65_536))

        tried(session.do_handshake)
        session.write(REQUEST)
        answer = tried(lambda: session.read(65_536))
    assert isinstance(answer, bytes)
    assert answer.startswith(b"HTTP/1.1 426 ")


def test_an_event_stream_and_its_end_come_over_tls(start: Start, file: Path) -> None:
    gateway = opened(start, file)
    with dialled(gateway, trusting(file)) as stream:
        stream.sendall(STREAM)
        read_until(stream, b"text/event-stream")
        gateway.server.append(PROGRAM, [push(1)])
        assert b'"seq": 1' in read_until(stream, b"id-1")
        gateway.server.stop()
        # Without close_notify this would be an error.
        while stream.recv(65_536):
            pass


def test_a_refusal_is_read_over_tls(start: Start, file: Path) -> None:
    gateway = opened(start, file)
    with dialled(gateway, trusting(file)) as client:
        client.sendall(b"GET /nowhere HTTP/1.1\r\nHost: broker.test\r\n\r\n")
        answer = b""
        while part := client.recv(65_536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"] == "not_found"


def test_only_http_1_is_offered(start: Start, file: Path) -> None:
    gateway = opened(start, file)
    context = trusting(file)
    context.set_alpn_protocols(["h2", "http/1.1"])
    with dialled(gateway, context) as client:
        assert client.selected_alpn_protocol() == "http/1.1"
    context.set_alpn_protocols(["h2"])
    with pytest.raises(ssl.SSLError, match=r"(?i)no.application.protocol"):
        dialled(gateway, context)
    assert outcomes(gateway)["failed"] == 1


def test_older_versions_are_refused_with_an_alert(start: Start, file: Path) -> None:
    gateway = opened(start, file)
    context = trusting(file)
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of them too
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError, match=r"(?i)alert (handshake failure|protocol version)"):
        dialled(gateway, context)
    assert outcomes(gateway) == {"full": 0, "resumed": 0, "failed": 1}


def test_who_speaks_no_tls_is_sent_away_without_http(start: Start, file: Path) -> None:
    gateway = opened(start, file)
    with socket.create_connection(("127.0.0.1", gateway.port), WAIT_S) as raw:
        raw.sendall(REQUEST)
        told = b""
        while part := raw.recv(65_536):
            told += part
    assert b"HTTP" not in told
    assert outcomes(gateway)["failed"] == 1
    wait_for(lambda: gateway.server.stats()["connections"] == 0)


BEGUN = b"\x16\x03\x01\x00\x01\x01"  # the first byte of a message
NO_RECORDS = {
    "no record": BEGUN + b"\xff" * 5,
    "a record out of place": BEGUN + b"\x17\x03\x01\x00\x01\x00",
    "two messages, the first bad": b"\x16\x03\x01\x00\x09" + b"\x63\0\0\x01\0" + b"\x01\0\0\x05",
}


@pytest.mark.parametrize("sent", NO_RECORDS.values(), ids=NO_RECORDS)
def test_a_handshake_that_breaks_off_within_a_message_is_refused(
    start: Start, file: Path, sent: bytes
) -> None:
    gateway = opened(start, file)
    assert answer_to(gateway, sent)[:2] in (b"", b"\x15\x03")  # an alert, for some
    assert outcomes(gateway)["failed"] == 1
    assert gateway.server.dead_loops() == 0
    with dialled(gateway, trusting(file)):
        pass


def test_writing_goes_on_while_a_message_of_the_handshake_is_incomplete(start: Start, file: Path) -> None:
    gateway = opened(start, file)
    client = Raw(gateway, file)
    with client.stream as stream:
        client.send(client.record(b"\x18\0\0", 22))
        for seq in range(1, 4):
            gateway.server.append(PROGRAM, [push(seq)])
            read_until(stream, b"id-%d" % seq)
        gateway.server.stop()
        while stream.recv(65_536):
            pass
    assert gateway.server.dead_loops() == 0


def test_messages_behind_the_handshake_have_bounded_memory(start: Start, file: Path) -> None:
    """Each record carries one byte of a long message, and is full of padding."""
    gateway = opened(start, file)
    client = Raw(gateway, file)
    with client.stream:
        client.send(client.record(b"\x04\0\xff\xff", 22))
        with suppress(OSError):
            for _ in range(200):
                client.send(client.record(b"\0", 22, 16_000))
                time.sleep(0.01)
            pytest.fail("3 MB were taken")
    assert outcomes(gateway)["failed"] == 1
    wait_for(lambda: gateway.server.stats()["connections"] == 0)


def test_many_messages_behind_the_handshake_have_bounded_memory_too(start: Start, file: Path) -> None:
    gateway = opened(start, file, loops=1, waiting_bytes=1 << 20)
    with ExitStack() as streams:
        clients = [Raw(gateway, file) for _ in range(30)]
        for client in clients:
            streams.enter_context(client.stream)
            client.send(client.record(b"\x04\0\xff\xff", 22))
            client.send(b"".join(client.record(b"\0", 22, 16_000) for _ in range(4)))
        wait_for(lambda: gateway.server.stats()["connections"] < 20)
        assert outcomes(gateway)["failed"] == 0


@pytest.mark.parametrize("parts", [[b"\x17\x03"], [b"\x17", b"\x03", b"\x03", b"\x01", *[b"x"] * 8]])
def test_a_record_has_to_end_in_time(start: Start, file: Path, parts: list[bytes]) -> None:
    gateway = opened(start, file, message_s=0.3)
    with Raw(gateway, file).stream as whole:
        client = Raw(gateway, file)
        with client.stream as stream:
            began = time.monotonic()
            for part in parts:
                client.send(part)
                time.sleep(0.05)
            assert b'"code":1008' in read_until(stream, b"took too long")
            assert 0.25 < time.monotonic() - began < 2
        gateway.server.append(PROGRAM, [push(1)])
        read_until(whole, b"id-1")


def test_a_record_that_ends_in_time_is_no_reason_to_close(start: Start, file: Path) -> None:
    gateway = opened(start, file, message_s=0.4)
    client = Raw(gateway, file)
    with client.stream as stream:
        record = client.record(b"x", 23)
        client.send(record[:9])
        time.sleep(0.1)
        client.send(record[9:])
        time.sleep(0.8)
        gateway.server.append(PROGRAM, [push(1)])
        assert b"closed" not in read_until(stream, b"id-1")


def test_the_certificate_is_exchanged_and_nobody_leaves(
    start: Start, join: Join, file: Path, tmp_path: Path
) -> None:
    gateway = opened(start, file)
    before = join(gateway, trusting(file))
    before.subscribe()
    newer = make_certificate(tmp_path / "..", HOST, days=30)
    gateway.server.set_certificate(*pair(newer))
    after = join(gateway, trusting(newer))
    after.subscribe()
    with pytest.raises(ssl.SSLCertVerificationError):
        stranger = tmp_path / "stranger"
        stranger.mkdir()
        join(gateway, trusting(make_certificate(stranger, HOST)))
    gateway.server.append(PROGRAM, [push(1)])
    assert before.seqs(1) == after.seqs(1) == [1]


@VERSIONS
def test_a_client_that_returns_resumes_beyond_an_exchange(
    start: Start, file: Path, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    gateway = opened(start, file)
    context = trusting(file)
    context.minimum_version = context.maximum_version = version
    with dialled(gateway, context) as first:
        first.sendall(STREAM)
        read_until(first, b"text/event-stream")
        session = first.session
    gateway.server.set_certificate(*pair(make_certificate(tmp_path / "..", HOST)))
    with dialled(gateway, context, session) as again:
        assert again.session_reused
        again.sendall(STREAM)
        read_until(again, b"text/event-stream")
    assert outcomes(gateway) == {"full": 1, "resumed": 1, "failed": 0}


def test_what_cannot_be_used_is_refused_in_words(start: Start, file: Path, tmp_path: Path) -> None:
    other = make_certificate(tmp_path / "..", HOST)
    gateway = opened(start, file)
    for chain, key in (
        (file.read_bytes(), other.read_bytes()),
        (b"", file.read_bytes()),
        (file.read_bytes(), b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"),
    ):
        with pytest.raises(ValueError, match=r"certificate|key") as told:
            gateway.server.set_certificate(chain, key)
        assert "AAAA" not in str(told.value)
    in_one_line = file.read_bytes().replace(b"\n", b" ")
    for chain, key in ((file.read_bytes(), in_one_line), (in_one_line, file.read_bytes())):
        with pytest.raises(ValueError, match=r"certificate|key") as told:
            gateway.server.set_certificate(chain, key)
        assert not re.search(r"\d", str(told.value))  # nor as numbers
    with dialled(gateway, trusting(file)):
        pass
    with pytest.raises(ValueError, match="without a certificate"):
        start().server.set_certificate(*pair(file))


def test_a_header_of_a_proxy_stands_before_tls(start: Start, join: Join, file: Path) -> None:
    gateway = opened(start, file, proxy_protocol=[DOOR], trusted_proxies=[DOOR])
    for header in (proxy_header.binary("192.0.2.7"), proxy_header.line("192.0.2.7")):

        def dial(header: bytes = header) -> socket.socket:
            raw = socket.create_connection(("127.0.0.1", gateway.port), WAIT_S, (DOOR, 0))
            raw.sendall(header)
            return raw

        client = join(gateway, trusting(file), dial=dial)
        client.send("ask")
        assert gateway.upcall()[5] == "192.0.2.7"


def test_a_handshake_has_to_end_in_time(start: Start, file: Path) -> None:
    gateway = opened(start, file, handshake_s=0.2)
    for begun in (b"", b"\x16\x03\x01\x01\x00\x01\x00\x00\xfc\x03\x03"):
        with socket.create_connection(("127.0.0.1", gateway.port), WAIT_S) as raw:
            raw.sendall(begun)
            assert raw.recv(100) == b""
    # Beyond the handshake of TLS there is a request to come.
    with dialled(gateway, trusting(file)) as silent:
        assert silent.recv(100).startswith(b"HTTP/1.1 408 ")


def test_unfinished_handshakes_have_bounded_memory(start: Start, file: Path) -> None:
    gateway = opened(start, file, loops=1, waiting_bytes=1 << 20)
    # Of a first message of 65,535 bytes, all but the end.
    record = b"\x16\x03\x01\x40\x00"
    begun = record + b"\x01\x00\xff\xff\x03\x03" + bytes(16_378) + 2 * (record + bytes(16_384))
    raws = []
    try:
        for _ in range(40):
            raws.append(socket.create_connection(("127.0.0.1", gateway.port), WAIT_S))
            raws[-1].sendall(begun)
        # What the others have sent may not have been read yet, when the first one is refused.
        wait_for(lambda: gateway.server.stats()["refused"] >= 16)
        wait_for(lambda: gateway.server.stats()["connections"] <= 24)
    finally:
        for raw in raws:
            raw.close()
    wait_for(lambda: gateway.server.stats()["connections"] == 0)
    with dialled(gateway, trusting(file)):
        pass


def test_one_address_has_its_number_of_connections(start: Start, join: Join, file: Path) -> None:
    gateway = opened(start, file, connections_per_address=2)
    context = trusting(file)
    for _ in range(2):
        join(gateway, context)
    with dialled(gateway, context) as third:
        third.sendall(REQUEST)
        assert third.recv(100).startswith(b"HTTP/1.1 429 ")
