"""Kernels that have `io_uring`, or a part of it: what `broker doctor` says, and that viewers are served."""

import errno
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.native.kernel import has_rings

pytestmark = pytest.mark.skipif(not has_rings(), reason="this kernel opens no ring")

SERVED = [[1, 2], [1, 2], [3, 4], [3, 4]]
WARNING = "gateways use send(), which costs more"


def examine(name: str, error: int = 0) -> dict[str, Any]:
    """What a process with such a kernel says."""
    command = [sys.executable, "-m", "tests.native.kernel", name, str(error)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def test_a_kernel_that_has_all_of_it_is_used() -> None:
    said = examine("nothing")
    assert (said["verdict"], said["detail"]) == ("OK", "allowed")
    assert (said["send"], said["reason"]) == ("io_uring", "the kernel has all of it")
    assert said["seqs"] == SERVED


@pytest.mark.parametrize(
    ("call", "error", "reason"),
    [
        ("io_uring_setup", errno.ENOSYS, "no io_uring: Function not implemented"),
        ("io_uring_setup", errno.EPERM, "no io_uring: Operation not permitted"),
        # Linux 5.5 and older: they know rings and cannot be asked for their operations.
        ("io_uring_register", errno.EINVAL, "no io_uring: its operations cannot be listed: Invalid argument"),
        # The list that comes back is empty.
        ("io_uring_register", 0, "no io_uring: the kernel has no send for it"),
        # Some containers allow to open a ring only.
        ("io_uring_enter", errno.EPERM, "no io_uring: it cannot be used: Operation not permitted"),
    ],
    ids=["no rings", "forbidden", "no list", "no send", "no submission"],
)
def test_a_kernel_that_lacks_a_part_of_it_is_a_warning_and_serves(call: str, error: int, reason: str) -> None:
    said = examine(call, error)
    assert said["verdict"] == "WARNING"
    assert reason in said["detail"]
    assert said["detail"].endswith(WARNING)
    assert said["send"] == "send"
    assert said["reason"].startswith(reason)
    assert said["seqs"] == SERVED


def test_a_ring_that_fails_under_a_gateway_gives_way_to_plain_sends() -> None:
    said = examine("later")
    assert said["lost"] > 0
    assert said["seqs"] == SERVED
    assert said["send"] == "send"
    assert said["reason"].startswith("io_uring has failed: ")
