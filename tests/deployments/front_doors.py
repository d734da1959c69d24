"""Nginx, HAProxy and Caddy as `deploy/front-doors` configures them, and callers from addresses of their own.

Nginx and Caddy are Debian's, pinned and unpacked below `.build` without root; HAProxy is the one that the
product uses itself. Of the configurations only addresses and the paths of certificates are replaced.
"""

import asyncio
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any

import pytest

from bench.peers.install import DEBIAN, InstallError, unpack_debian
from broker.deployments.ray_internals.haproxy import find_haproxy

CONFIGURATIONS = Path(__file__).parents[2] / "deploy" / "front-doors"
HOST = "demo.localhost"
"""The name of each front door, and of its certificate; Caddy and HAProxy tell by it what is asked for."""
_START_S = 30.0
_STOP_S = 1.0
_MOST_CONNECTIONS = "1000"  # HAProxy holds memory for as many as the machine has descriptors else


@dataclass(frozen=True, slots=True)
class Place:
    """Where a front door listens, and what is behind it.

    Attributes:
        port: for TLS.
        plain_port: for HTTP, which leads to TLS.
        source: the address by which the product knows a front door that sends PROXY headers.
        certificate: with its key in the same file.
    """

    port: int
    plain_port: int
    http_port: int
    ws_port: int
    source: str
    certificate: Path

    def replaced(self) -> dict[str, str]:
        """What each of the configurations has, and what stands there in a test."""
        return {
            "127.0.0.1:8000": f"127.0.0.1:{self.http_port}",
            "127.0.0.1:8001": f"127.0.0.1:{self.ws_port}",
        }


@contextmanager
def nginx(place: Place, directory: Path) -> Iterator[None]:
    """Nginx with our file in the place of a site's."""
    program = _debian("nginx", "usr/sbin/nginx")
    site = _configure(
        "nginx.conf",
        directory,
        {
            **place.replaced(),
            "listen 80;": f"listen 127.0.0.1:{place.plain_port};",
            "listen 443 ssl": f"listen 127.0.0.1:{place.port} ssl",
            "/etc/ssl/broker/live.crt": str(place.certificate),
            "/etc/ssl/broker/live.key": str(place.certificate),
        },
    )
    kept = "".join(
        f"{name}_temp_path {directory / name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    # What Debian's nginx.conf would say around it.
    whole = directory / "whole.conf"
    whole.write_text(
        f"{'user root;' if os.geteuid() == 0 else ''}\n"
        f"pid {directory / 'pid'};\nerror_log stderr;\ndaemon off;\nworker_processes 1;\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{kept}include {site};\n}}\n"
    )
    with _running([program, "-e", "stderr", "-p", directory, "-c", whole], place, directory):
        yield


@contextmanager
def haproxy(place: Place, directory: Path) -> Iterator[None]:
    """HAProxy, which sends PROXY headers."""
    program = find_haproxy()
    if program is None:
        pytest.skip("HAProxy cannot run here")
    configuration = _configure(
        "haproxy.cfg",
        directory,
        {
            **place.replaced(),
            "bind :80": f"bind 127.0.0.1:{place.plain_port}",
            "bind :443": f"bind 127.0.0.1:{place.port}",
            "/etc/ssl/broker/live.pem": str(place.certificate),
            "source 127.0.0.2": f"source {place.source}",
        },
    )
    with _running([program, "-db", "-n", _MOST_CONNECTIONS, "-f", configuration], place, directory):
        yield


@contextmanager
def caddy(place: Place, directory: Path) -> Iterator[None]:
    """Caddy."""
    program = _debian("caddy", "usr/bin/caddy")
    configuration = _configure(
        "Caddyfile",
        directory,
        {
            **place.replaced(),
            "admin unix//run/caddy/admin.sock": (
                f"admin off\n\tdefault_bind 127.0.0.1\n\thttp_port {place.plain_port}"
            ),
            "live.example.org, *.live.example.org": f"https://{HOST}:{place.port}",
            "/etc/ssl/broker/live.crt": str(place.certificate),
            "/etc/ssl/broker/live.key": str(place.certificate),
        },
    )
    with _running([program, "run", "--adapter", "caddyfile", "--config", configuration], place, directory):
        yield


FRONT_DOORS = {"nginx": nginx, "HAProxy": haproxy, "Caddy": caddy}


def _debian(name: str, program: str) -> Path:
    """A program of a pinned package of Debian; skips the test where that cannot be had."""
    path = DEBIAN / program
    if not path.exists():
        try:
            unpack_debian(name)
        except InstallError as error:
            pytest.skip(f"{name} cannot be had here: {error}")
    return path


def _configure(name: str, directory: Path, replaced: Mapping[str, str]) -> Path:
    text = (CONFIGURATIONS / name).read_text()
    for theirs, ours in replaced.items():
        assert theirs in text, f"{name} has no {theirs}"
        text = text.replace(theirs, ours)
    path = directory / name
    path.write_text(text)
    return path


@contextmanager
def _running(command: list[Any], place: Place, directory: Path) -> Iterator[None]:
    with (directory / "said").open("wb") as said:
        environment = {"PATH": os.environ["PATH"], "HOME": str(directory)}
        process = subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env=environment,
        )
    try:
        deadline_s = time.monotonic() + _START_S
        while not _listens(place.port):
            assert process.poll() is None, (directory / "said").read_text()
            assert time.monotonic() < deadline_s, (directory / "said").read_text()
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:  # Caddy waits for its clients, without an end
            process.kill()
            process.wait()


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
        return True
    return False


def loop_from(source: str) -> Callable[[], asyncio.AbstractEventLoop]:
    """A factory of event loops whose connections all come from this address."""

    class Loop(asyncio.SelectorEventLoop):
        async def create_connection(self, *arguments: Any, **options: Any) -> Any:
            if options.get("sock") is None:
                options["local_addr"] = (source, 0)
            return await super().create_connection(*arguments, **options)

    return Loop


@contextmanager
def naming_door(port: int, source: str, header: bytes) -> Iterator[int]:
    """The port of a front door before this one, which passes on bytes after a PROXY header.

    Args:
        source: of its connections.
    """

    class Relay(StreamRequestHandler):
        def handle(self) -> None:
            with socket.create_connection(("127.0.0.1", port), 20, (source, 0)) as upstream:
                upstream.settimeout(None)
                upstream.sendall(header)
                threading.Thread(target=_pass_on, args=(self.request, upstream), daemon=True).start()
                _pass_on(upstream, self.request)

    with ThreadingTCPServer(("127.0.0.1", 0), Relay) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while part := source.recv(65_536):
            target.sendall(part)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
