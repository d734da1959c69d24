"""The echo example as a child process."""

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from broker.deployments.ports import free_port

ROOT = Path(__file__).parents[2]
BUILD = ["build", "--release", "--quiet", "--example", "echo"]
RUN = ["run", "--release", "--quiet", "--example", "echo", "--"]
START_S = 30.0
STOP_S = 10.0


@contextmanager
def running_echo() -> Iterator[str]:
    """Build and run the echo server on a free port; yields its address, host:port.

    Raises:
        RuntimeError: it does not build, does not answer within `START_S`, or does not end by SIGTERM.
    """
    cargo = shutil.which("cargo")
    if cargo is None:
        raise RuntimeError("cargo is not on the PATH; install Rust to run the conformance cases")
    if subprocess.run([cargo, *BUILD], cwd=ROOT, check=False).returncode:
        raise RuntimeError("the echo example does not build")
    port = free_port()
    # On Unix cargo replaces itself with the program, so that the signal below reaches the server.
    server = subprocess.Popen([cargo, *RUN, f"127.0.0.1:{port}"], cwd=ROOT)
    try:
        wait_until_open(server, port)
        yield f"127.0.0.1:{port}"
    finally:
        stop(server)


def wait_until_open(server: subprocess.Popen[bytes], port: int) -> None:
    """Wait until the server accepts connections."""
    deadline = time.monotonic() + START_S
    while True:
        if server.poll() is not None:
            raise RuntimeError(f"the echo server ended with status {server.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise RuntimeError("the echo server does not answer") from None
            time.sleep(0.02)
        else:
            return


def stop(server: subprocess.Popen[bytes]) -> None:
    """End the server as an operator would; a server that stays is killed and reported."""
    if server.poll() is not None:
        raise RuntimeError(f"the echo server ended by itself with status {server.returncode}")
    server.send_signal(signal.SIGTERM)
    try:
        server.wait(STOP_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
        raise RuntimeError("the echo server did not end by SIGTERM") from None
