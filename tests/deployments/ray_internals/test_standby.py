import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import PIPE, Popen

import pytest

from broker.deployments.ports import free_port
from broker.deployments.ray_internals import standby
from broker.deployments.ray_internals.ray_cluster import stand_in

HOST = "127.0.0.1"
HELPER = "import os; print(os.getpid(), flush=True); input()"


@contextmanager
def standing_by(port: int) -> Iterator[Popen[bytes]]:
    command = [sys.executable, "-I", "-S", standby.__file__, HOST, str(port), sys.executable, "-c", HELPER]
    with Popen(command, stdin=PIPE, stdout=PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def read_line(process: Popen[bytes]) -> bytes:
    assert process.stdout
    return process.stdout.readline()


def knock(port: int) -> None:
    """Connect as soon as somebody listens, who hangs up."""
    while True:
        try:
            with socket.create_connection((HOST, port), timeout=10) as caller:
                caller.recv(1)  # as one who waits for an answer
                return
        except ConnectionRefusedError:
            continue
        except ConnectionResetError:
            return


def test_the_first_connection_brings_the_helper_in_the_same_process() -> None:
    port = free_port()
    with standing_by(port) as process:
        knock(port)
        assert int(read_line(process)) == process.pid
        with socket.create_server((HOST, port)):  # the helper finds its port free
            pass


@pytest.mark.parametrize("listens", [False, True])
def test_it_ends_with_the_raylet_and_brings_no_helper(listens: bool) -> None:
    with standing_by(free_port() if listens else 0) as process:
        out, _ = process.communicate(timeout=30)  # closes its standard input
        assert (process.returncode, out) == (0, b"")


def test_words_on_its_input_are_not_the_raylet_s_end() -> None:
    port = free_port()
    with standing_by(port) as process:
        assert process.stdin
        process.stdin.write(b"\n")
        process.stdin.flush()
        knock(port)
        assert int(read_line(process)) == process.pid


def test_it_takes_the_place_of_both_helpers_and_of_nothing_else() -> None:
    waiting = subprocess.list2cmdline([sys.executable, "-I", "-S", standby.__file__, HOST])
    assert stand_in("--dashboard_agent_command=a b", HOST, 7) == f"--dashboard_agent_command={waiting} 0 a b"
    assert stand_in("--runtime_env_agent_command=a", HOST, 7) == f"--runtime_env_agent_command={waiting} 7 a"
    assert stand_in("--node_ip_address=1", HOST, 7) == "--node_ip_address=1"
