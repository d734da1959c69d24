"""The ingress with a certificate: HAProxy with our configuration, from outside."""

import logging
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from broker.deployments.http_key_pair import read_certificate
from broker.deployments.ingress_certificate import IngressCertificate
from broker.deployments.ingress_start import certificate_file
from broker.deployments.ports import free_port
from broker.rest.callers import HEADER, PUBLIC
from broker.settings import SettingError, Settings
from broker.setup_error import SetupError
from tests import proxy_header
from tests.deployments.ingress_stage import KEY, NAMING_DOOR, Ingress, Replica, get, parse, read_all
from tests.fetching.upstream import make_certificate

HOST = "api.test"
pytestmark = pytest.mark.anyio


class Stage:
    """An ingress that speaks TLS too, with a replica."""

    def __init__(self, directory: Path, **limits: str) -> None:
        self.directory = directory
        self.file = make_certificate(directory, HOST)
        self.port = free_port()
        names = {"http_tls_port": self.port, "http_tls_certificate": str(self.file)}
        self.settings = Settings.load({}, http_tls_key=str(self.file), **names)
        self.replica = Replica("one")
        self.ingress = Ingress(
            HTTP_TLS_PORT=str(self.port),
            HTTP_TLS_CERTIFICATE=str(self.file),
            HTTP_TLS_KEY=str(self.file),
            **limits,
        )
        self.watch = IngressCertificate(self.settings, lambda: [self.ingress.config])

    def run(self) -> None:
        self.ingress.run({"broker": ("/", [self.replica])})
        self.ingress.until_up(1)

    def renew(self, days: float) -> bytes:
        """Put another certificate in the place of the one before, and return it."""
        return make_certificate(self.directory, HOST, days).read_bytes()

    def fail_to_start(self) -> None:
        """As Ray exchanges HAProxy, but the new process ends at once; the one before goes on."""
        self.ingress.write_as_ray({"broker": ("/", [self.replica])})
        process = self.ingress.start(["-db", "-f", str(self.ingress.config), "-no-such-option"])
        assert process.wait(30) != 0

    def dial(self, trusted: bytes, sent: bytes = b"", source: str = "127.0.0.1") -> ssl.SSLSocket:
        raw = socket.create_connection(("127.0.0.1", self.port), 20, (source, 0))
        raw.sendall(sent)
        text = trusted.decode().partition("-----BEGIN PRIVATE KEY-----")[0]
        return ssl.create_default_context(cadata=text).wrap_socket(raw, server_hostname=HOST)

    def expiry_s(self) -> float:
        (sample,) = self.watch.figures()
        assert sample.labels == ("http",)
        return float(sample.value)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    stage.ingress.end()
    stage.replica.end()


def ask(peer: ssl.SSLSocket, *, is_last: bool = True) -> tuple[int, dict[str, str], object]:
    end = "Connection: close\r\n" if is_last else ""
    peer.sendall(f"GET /ok HTTP/1.1\r\nHost: {HOST}\r\n{end}\r\n".encode())
    if is_last:
        return parse(read_all(peer))
    told = b""
    while not told.endswith(b"}"):
        told += peer.recv(65_536)
    return parse(told)


def test_requests_come_over_tls_and_without(stage: Stage) -> None:
    stage.run()
    with stage.dial(stage.file.read_bytes()) as peer:
        assert peer.version() == "TLSv1.3"
        status, headers, body = ask(peer)
    assert (status, headers["x-content-type-options"]) == (200, "nosniff")
    assert isinstance(body, dict)
    assert body["headers"][HEADER] == [f"{KEY} {PUBLIC} 127.0.0.1"]
    assert get(stage.ingress.port, "/ok")[0] == 200


def test_a_proxy_header_stands_before_tls(stage: Stage) -> None:
    stage.run()
    header = proxy_header.binary("192.0.2.7")
    with stage.dial(stage.file.read_bytes(), header, NAMING_DOOR) as peer:
        _, _, body = ask(peer)
    assert isinstance(body, dict)
    assert body["headers"][HEADER] == [f"{KEY} {PUBLIC} 192.0.2.7"]


async def test_the_certificate_is_exchanged_and_connections_go_on(stage: Stage) -> None:
    stage.run()
    old = stage.file.read_bytes()
    with stage.dial(old) as before:
        assert ask(before, is_last=False)[0] == 200
        await stage.watch.look()
        assert stage.expiry_s() - time.time() < 86_400
        process, new = stage.ingress.processes[-1], stage.renew(days=30)
        await stage.watch.look()
        with pytest.raises(ssl.SSLCertVerificationError):
            stage.dial(old)
        with stage.dial(new) as after:
            assert ask(after)[0] == 200
        assert ask(before)[0] == 200
        assert process.poll() is None
    assert stage.expiry_s() - time.time() > 29 * 86_400
    # A process that starts later has it too.
    stage.run()
    with stage.dial(new) as later:
        assert ask(later)[0] == 200


async def test_a_certificate_that_a_failed_start_left_unread_is_given_again(stage: Stage) -> None:
    stage.run()
    new = stage.renew(days=30)
    stage.fail_to_start()
    assert certificate_file(stage.ingress.config).read_bytes() == read_certificate(stage.settings)
    await stage.watch.look()
    with stage.dial(new) as peer:
        assert ask(peer)[0] == 200
    assert stage.expiry_s() - time.time() > 29 * 86_400


async def test_the_end_of_what_is_served_is_reported_while_an_exchange_fails(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.run()
    old, new = stage.file.read_bytes(), stage.renew(days=30)
    # Too long for an exchange, not for a start.
    stage.file.write_bytes(new + 20 * new.partition(b"-----BEGIN PRIVATE KEY-----")[0])
    stage.fail_to_start()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            await stage.watch.look()
    assert [record.message for record in caplog.records] == ["certificate_not_exchanged"]
    assert stage.expiry_s() - time.time() < 86_400
    with stage.dial(old) as peer:
        assert ask(peer)[0] == 200


async def test_half_a_renewal_changes_nothing_and_stops_no_start(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.run()
    old, other = stage.file.read_bytes(), make_certificate(stage.directory, "other.test").read_bytes()
    mark = b"-----BEGIN PRIVATE KEY-----"
    stage.file.write_bytes(old.partition(mark)[0] + mark + other.partition(mark)[2])
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            await stage.watch.look()
    assert [record.message for record in caplog.records] == ["certificate_not_exchanged"]
    stage.run()
    with stage.dial(old) as peer:
        assert ask(peer)[0] == 200


def test_a_first_start_without_a_usable_certificate_says_so(stage: Stage) -> None:
    stage.file.write_bytes(b"")
    stage.ingress.write_as_ray({"broker": ("/", [stage.replica])})
    process = stage.ingress.start(["-db", "-f", str(stage.ingress.config)])
    assert process.wait(30) != 0
    assert "BROKER_HTTP_TLS_CERTIFICATE" in stage.ingress.said()
    with pytest.raises(SetupError, match=r"^BROKER_HTTP_TLS_CERTIFICATE: .* is empty"):
        read_certificate(stage.settings)


def test_the_file_with_the_key_is_ours_alone(stage: Stage) -> None:
    stage.run()
    (file,) = stage.ingress.directory.glob("*.pem")
    assert file.stat().st_mode & 0o777 == 0o600


def test_old_versions_are_refused(stage: Stage) -> None:
    stage.run()
    done = subprocess.run(
        [
            "openssl",
            "s_client",
            "-connect",
            f"127.0.0.1:{stage.port}",
            "-tls1_1",
            "-cipher",
            "ALL:@SECLEVEL=0",
        ],
        input=b"",
        capture_output=True,
        timeout=20,
        check=False,
    )
    assert b"Cipher is (NONE)" in done.stdout


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"HTTP_TLS_PORT": "8443"}, "needs BROKER_HTTP_TLS_CERTIFICATE"),
        (
            {"HTTP_TLS_PORT": "8001", "HTTP_TLS_CERTIFICATE": "/a", "HTTP_TLS_KEY": "/b"},
            "must differ from the other ports",
        ),
    ],
)
def test_a_port_needs_a_certificate_and_is_its_own(given: dict[str, str], told: str) -> None:
    with pytest.raises(SettingError, match=f"^BROKER_HTTP_TLS_PORT: {told}"):
        Settings.load({f"BROKER_{name}": value for name, value in given.items()})


def test_named_addresses_are_counted_when_their_handshakes_are_done(tmp_path: Path) -> None:
    """HAProxy has no rule between a PROXY header and TLS: a limit that docs/front-doors.md states."""
    stage = Stage(tmp_path, HTTP_CONNECTIONS_PER_ADDRESS="2")
    stage.run()
    header, content = proxy_header.binary("192.0.2.7"), stage.file.read_bytes()
    with ExitStack() as open_ones:
        for _ in range(5):
            raw = socket.create_connection(("127.0.0.1", stage.port), 20, (NAMING_DOOR, 0))
            open_ones.enter_context(raw).sendall(header)
        for _ in range(2):
            peer = open_ones.enter_context(stage.dial(content, header, NAMING_DOOR))
            assert ask(peer, is_last=False)[0] == 200
        with suppress(ConnectionError, ssl.SSLEOFError), stage.dial(content, header, NAMING_DOOR) as third:
            assert third.recv(1) == b""
    stage.ingress.end()
    stage.replica.end()
