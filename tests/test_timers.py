import ctypes
import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from broker import timers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has timers that may be late")


@pytest.fixture(autouse=True)
def _exact_again():
    yield
    timers.allow_late(timers.EXACT_S)


def read_slack_ns() -> int:
    return int(Path(f"/proc/{threading.get_native_id()}/timerslack_ns").read_text())


def run_python(code: str) -> str:
    """What a Python of its own prints; what it does to itself ends with it."""
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    ).stdout


def test_timers_are_late_in_what_a_thread_starts_and_not_in_others() -> None:
    found: dict[str, int | str] = {}
    is_late, may_end = threading.Event(), threading.Event()

    def be_late() -> None:
        timers.allow_late(0.25)
        inner = threading.Thread(target=lambda: found.update(thread=read_slack_ns()))
        inner.start()
        inner.join()
        found["process"] = run_python("print(open('/proc/self/timerslack_ns').read())").strip()
        is_late.set()
        may_end.wait(60)

    outer = threading.Thread(target=be_late)
    outer.start()
    assert is_late.wait(60)
    assert found == {"thread": 250_000_000, "process": "250000000"}
    assert read_slack_ns() == 50_000
    may_end.set()
    outer.join()


def test_late_is_over_at_its_end_and_when_something_fails() -> None:
    timers.allow_late(0.01)
    with pytest.raises(ValueError, match="oops"), timers.late(0.3):
        assert read_slack_ns() == 300_000_000
        raise ValueError("oops")
    assert read_slack_ns() == 10_000_000


def test_exact_takes_back_what_was_inherited() -> None:
    with timers.late(0.3):
        found: list[int] = []

        def be_exact() -> None:
            timers.allow_late(timers.EXACT_S)
            found.append(read_slack_ns())

        thread = threading.Thread(target=be_exact)
        thread.start()
        thread.join()
    assert found == [50_000]


CREATE = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
print(libc.timerfd_create(1, 0), errno.errorcode.get(ctypes.get_errno()))
"""


def test_timer_descriptors_are_denied_to_a_process_and_to_its_children() -> None:
    assert run_python(CREATE).split()[1] == "None"
    code = "from broker import timers; timers.deny_timer_descriptors()\n"
    inner = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CREATE!r}], check=True)"
    assert run_python(code + CREATE).split() == ["-1", "ENOSYS"]
    assert run_python(code + inner).split() == ["-1", "ENOSYS"]


def test_all_other_calls_work_where_timer_descriptors_are_denied(tmp_path: Path) -> None:
    code = f"""
from broker import timers
timers.deny_timer_descriptors()
import asyncio, pathlib, socket, ssl, tempfile
async def main():
    server = await asyncio.start_server(lambda r, w: w.write(b"hello") or w.close(), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    await asyncio.sleep(0.001)
    print((await reader.read()).decode())
asyncio.run(main())
pathlib.Path({str(tmp_path / "x")!r}).write_text("there")
"""
    assert run_python(code).strip() == "hello"
    assert (tmp_path / "x").read_text() == "there"


def test_here_the_kernel_still_has_them() -> None:
    descriptor = ctypes.CDLL(None, use_errno=True).timerfd_create(1, 0)
    assert descriptor >= 0, errno.errorcode[ctypes.get_errno()]
    os.close(descriptor)
