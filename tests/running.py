"""`broker up` as a process of its own, for tests of the whole product."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

PASSWORD = "correct-horse-battery"
_START_S = 90.0
_STOP_S = 30.0


@dataclass(frozen=True, slots=True)
class Running:
    """One running product. `url` names its default account's API; user `admin` has `PASSWORD`."""

    process: subprocess.Popen[bytes]
    http_port: int
    ws_port: int
    output: Path

    @property
    def url(self) -> str:
        return f"http://demo.localhost:{self.http_port}"

    def find(self, title: str) -> list[psutil.Process]:
        """Processes below `broker up` whose command line contains `title`."""
        found = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if title in " ".join(process.cmdline()):
                    found.append(process)
            except psutil.NoSuchProcess:
                continue
        return found


@contextmanager
def run_product(data_dir: Path, *arguments: str, **environ: str) -> Iterator[Running]:
    """Start the product on free ports, wait for `ready`, stop it with SIGTERM afterwards."""
    http_port, ws_port = free_port(), free_port()
    output = data_dir.parent / f"{data_dir.name}.log"
    command = [str(Path(sys.executable).parent / "broker"), "up", "--data-dir", str(data_dir)]
    command += ["--http-port", str(http_port), "--ws-port", str(ws_port), *arguments]
    environ = os.environ | {"BROKER_ADMIN_PASSWORD": PASSWORD} | environ
    with output.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environ)
    try:
        _wait_until_ready(process, output)
        yield Running(process, http_port, ws_port, output)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(_STOP_S)


def free_port() -> int:
    """A TCP port of the loopback that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(process: subprocess.Popen[bytes], output: Path) -> None:
    deadline = time.monotonic() + _START_S
    while not any(line.startswith("ready ") for line in output.read_text().splitlines()):
        assert process.poll() is None, f"broker up ended: {output.read_text()}"
        assert time.monotonic() < deadline, f"broker up is not ready: {output.read_text()}"
        time.sleep(0.1)
