"""What TLS costs: `python -m bench tls [--viewers N] [--messages N] [--runs N] [--quick]`.

The same viewers of one program, by plain WebSocket, by the gateway's own TLS, and by HAProxy's and nginx's
in front of a plain gateway. What is compared is CPU time, of all processes that serve: latencies would be
those of the client, which decrypts in Python.
"""

import argparse
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from bench.child import Child
from bench.contenders import ROOT
from bench.peers.install import DEBIAN, unpack_debian
from bench.report import Medians
from bench.scenes import Outcome, measure_scenes
from broker.deployments.ports import free_port
from broker.deployments.ray_internals.haproxy import find_haproxy

VIEWERS = 300
MESSAGES = 300
MESSAGE_BYTES = 300
INTERVAL_US = 25_000
SETTLE_S = 1.0
HOST = "bench.test"

Door = Callable[[int, int, Path, Path], AbstractContextManager[int | None]]
"""Port, port of the gateway, certificate with key, directory → the id of its process."""


def main(words: list[str]) -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m bench tls", description=__doc__.splitlines()[0])
    parser.add_argument("--viewers", type=int, default=VIEWERS)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one run with a tenth of the messages")
    arguments = parser.parse_args(words)
    runs, messages = (
        (1, arguments.messages // 10) if arguments.quick else (arguments.runs, arguments.messages)
    )
    ways: dict[str, tuple[bool, Door | None]] = {
        "plain": (False, None),
        "the gateway's TLS": (True, None),
        "HAProxy's TLS": (False, _haproxy),
        "nginx's TLS": (False, _nginx),
    }
    acts = {
        name: lambda way=way, name=name: _measure(name, *way, arguments.viewers, messages)
        for name, way in ways.items()
    }
    return measure_scenes("tls", runs, acts, with_load_client=False)


def _measure(name: str, is_native: bool, door: Door | None, viewers: int, messages: int) -> Outcome:
    """One run of one way: CPU time of a connection, and of a delivery."""
    with tempfile.TemporaryDirectory() as kept:
        directory = Path(kept)
        certificate = _make_certificate(directory)
        gateway_port, port = free_port(), free_port()
        serving = [sys.executable, "-m", "bench.servers.native", str(gateway_port), "auto", "0"]
        with Child(serving + ([str(certificate)] if is_native else []), ROOT) as gateway:
            gateway.receive_serving()
            front = door(port, gateway_port, certificate, directory) if door else _none()
            with front as pid:

                def cpu_s() -> float:
                    return gateway.cpu_s() + (0.0 if pid is None else _cpu_s(pid))

                place = port if door else gateway_port
                client = [sys.executable, "-m", "bench.tls_viewers", str(place), str(viewers)]
                began_s = cpu_s()
                with Child([*client, *([str(certificate)] if is_native or door else [])], ROOT) as crowd:
                    crowd.receive()
                    time.sleep(SETTLE_S)
                    joined_s = cpu_s()
                    gateway.send(f"publish {messages} {MESSAGE_BYTES} {INTERVAL_US}")
                    gateway.receive()
                    time.sleep(SETTLE_S)
                    sent_s = cpu_s()
                    crowd.send("")
                    seen = crowd.receive()["messages"]
    figures: Medians = {
        "CPU_us_a_connection": (joined_s - began_s) / viewers * 1e6,
        "CPU_us_a_delivery": (sent_s - joined_s) / (viewers * messages) * 1e6,
    }
    missing = viewers * messages - seen
    return {name: figures}, [f"{name}: {missing} messages are missing"] if missing else []


def _cpu_s(pid: int) -> float:
    """Of a process and its children: nginx's workers."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(
        int((task / "schedstat").read_text().split()[0]) / 1e9
        for each in (str(pid), *children)
        for task in Path(f"/proc/{each}/task").iterdir()
    )


def _make_certificate(directory: Path) -> Path:
    """A certificate and its key, ECDSA P-256, in one file."""
    file = directory / "live.pem"
    key, chain = directory / "key", directory / "chain"
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    words += ["-subj", f"/CN={HOST}", "-addext", f"subjectAltName=DNS:{HOST}", "-days", "2"]
    words += ["-keyout", str(key), "-out", str(chain)]
    subprocess.run(words, check=True, capture_output=True)
    file.write_bytes(chain.read_bytes() + key.read_bytes())
    return file


@contextmanager
def _none() -> Iterator[None]:
    yield None


@contextmanager
def _running(words: list[str | Path], port: int, certificate: Path) -> Iterator[int]:
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            context = ssl.create_default_context(cafile=str(certificate))
            for _ in range(100):
                try:
                    raw = socket.create_connection(("127.0.0.1", port), 5)
                    with raw, context.wrap_socket(raw, server_hostname=HOST):
                        break
                except OSError:
                    time.sleep(0.1)
            yield process.pid
        finally:
            process.terminate()


@contextmanager
def _haproxy(port: int, gateway_port: int, certificate: Path, directory: Path) -> Iterator[int]:
    program = find_haproxy()
    assert program is not None, "`broker doctor` says why it does not run"
    file = directory / "haproxy.cfg"
    file.write_text(
        "global\n    nbthread 1\n    maxconn 5000\n"
        "defaults\n    mode http\n    option http-no-delay\n    timeout connect 5s\n    timeout client 60s\n"
        "    timeout server 60s\n    timeout tunnel 120s\n"
        f"frontend f\n    bind 127.0.0.1:{port} ssl crt {certificate} alpn http/1.1\n    default_backend b\n"
        f"backend b\n    server g 127.0.0.1:{gateway_port}\n"
    )
    with _running([program, "-db", "-f", file], port, certificate) as pid:
        yield pid


@contextmanager
def _nginx(port: int, gateway_port: int, certificate: Path, directory: Path) -> Iterator[int]:
    program = DEBIAN / "usr/sbin/nginx"
    if not program.exists():
        unpack_debian("nginx")
    file = directory / "nginx.conf"
    kept = "".join(
        f"{name}_temp_path {directory / name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    file.write_text(
        f"user root;\npid {directory / 'pid'};\nerror_log stderr;\ndaemon off;\nworker_processes 1;\n"
        f"events {{ worker_connections 5000; }}\nhttp {{\naccess_log off;\n{kept}"
        f"server {{\nlisten 127.0.0.1:{port} ssl;\nssl_certificate {certificate};\n"
        f"ssl_certificate_key {certificate};\nlocation / {{\nproxy_pass http://127.0.0.1:{gateway_port};\n"
        "proxy_http_version 1.1;\nproxy_set_header Upgrade $http_upgrade;\n"
        'proxy_set_header Connection "upgrade";\nproxy_set_header Host $host;\n'
        "proxy_buffering off;\n}\n}\n}\n"
    )
    with _running([program, "-e", "stderr", "-p", directory, "-c", file], port, certificate) as pid:
        yield pid
