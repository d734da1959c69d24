"""A `broker up` in a process of its own, for tests."""

import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import httpx

from broker.deployments.data_dir import find_scratch
from broker.deployments.ports import free_port
from broker.deployments.processes import end_marked, list_marked
from broker.settings import child_environment

PASSWORD = "correct-horse"
START_S = 240.0  # on a machine that does other things too; alone it takes nine seconds

_MAIN = "from broker.cli.main import main; main()"
# Its input ends with the process that started it, also by `kill -9`; then it stops as if it were asked to.
_LIFELINE = """
import os, signal, threading

def follow():
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=follow, daemon=True).start()
"""


class Instance:
    """One instance on a data directory; `start` and `stop` it any number of times."""

    def __init__(
        self,
        data_dir: Path,
        http_port: int = 0,
        ws_port: int = 0,
        *,
        host: str = "localhost",
        database_url: str = "",
        environment: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        """Nothing is started yet.

        Args:
            host: where clients find what it binds to.
            environment: is added to the processes' own.
            prefix: of the command that starts it.
        """
        self.host = host
        self.data_dir = data_dir
        self.http_port = http_port or free_port()
        self.ws_port = ws_port or free_port()
        self.ops_port = free_port()
        self.database_url = database_url
        self.environment = environment or {}
        self.prefix = prefix
        self.lines: list[str] = []
        self.scratch: Path | None = None
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.http_port}"

    @property
    def ops_url(self) -> str:
        return f"http://localhost:{self.ops_port}"

    @property
    def process(self) -> "subprocess.Popen[str]":
        assert self._process is not None
        return self._process

    def start(self) -> None:
        """Start it and wait for its line `ready`."""
        self._process = self._spawn(_LIFELINE + _MAIN, stdin=subprocess.PIPE, errors=subprocess.STDOUT)
        read: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, args=(self._process, read), daemon=True).start()
        deadline_s = time.monotonic() + START_S
        self.lines = []
        while not self.lines or not self.lines[-1].startswith("ready "):
            line = read.get(timeout=max(0.0, deadline_s - time.monotonic()))
            assert line, "\n".join([*self.lines, self.log()])
            self.lines.append(line)
        self.scratch = find_scratch(self.data_dir)

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Start it; nothing of it is left after the block, whatever has happened, a failed start too."""
        try:
            self.start()
            yield self
        finally:
            self.end()

    def fail(self, *options: str) -> str:
        """Start it expecting that it cannot; returns the line it says why with."""
        process = self._spawn(_MAIN, *options, stdin=subprocess.DEVNULL, errors=subprocess.PIPE)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 1
        assert errors.count("\n") == 1, errors
        return errors

    def stop(self, number: signal.Signals = signal.SIGTERM) -> float:
        """Ask it to end; returns the seconds that took. Its exit status must be 0."""
        began_s = time.monotonic()
        self.process.send_signal(number)
        assert self.process.wait(60) == 0, self.log()
        return time.monotonic() - began_s

    def kill_everything(self) -> None:
        """`kill -9` of every process of the instance, at once."""
        pids = [self.process.pid, *self.processes()]
        if not self.database_url:
            pids += _children_of(self._postmaster())
        for pid in pids:
            with suppress(ProcessLookupError):  # it followed its parent
                os.kill(pid, signal.SIGKILL)
        end_marked(self._mark())  # also what one of them has started since
        self.process.wait()

    def processes(self) -> list[int]:
        """All living processes of the instance but `broker up` itself and PostgreSQL's."""
        return list_marked(mark) if (mark := self._mark()) else []

    def leaves_nothing(self) -> bool:
        """Whether no process and no file outside of the data directory is left."""
        pid_file = self.data_dir / "postgres" / "data" / "postmaster.pid"
        is_scratch_left = self.scratch is not None and self.scratch.exists()
        return not (self.processes() or pid_file.exists() or is_scratch_left or find_scratch(self.data_dir))

    def log(self) -> str:
        """The end of what its processes wrote."""
        paths = [self.data_dir / "log" / name for name in ("broker.log", "stderr.log")]
        return "\n".join(path.read_text()[-3000:] for path in paths if path.exists())

    def token(self) -> dict[str, str]:
        """The header of the admin."""
        form = {
            "grant_type": "password",
            "username": "admin",
            "password": PASSWORD,
            "client_id": "Test",
        }
        reply = httpx.post(f"{self.url}/api/v1/token", data=form, timeout=20)
        reply.raise_for_status()
        return {"Authorization": f"Bearer {reply.json()['access_token']}"}

    def end(self) -> None:
        """Leave nothing, whatever the test did."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self.processes():
            self.kill_everything()
        if scratch := find_scratch(self.data_dir):
            shutil.rmtree(scratch, ignore_errors=True)

    def _spawn(self, code: str, *options: str, stdin: int, errors: int) -> "subprocess.Popen[str]":
        ports = ["--http-port", str(self.http_port), "--ws-port", str(self.ws_port)]
        return subprocess.Popen(
            [
                *self.prefix,
                sys.executable,
                "-c",
                code,
                "up",
                "--data-dir",
                str(self.data_dir),
                *ports,
                *options,
            ],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=child_environment(
                {
                    "BROKER_ADMIN_PASSWORD": PASSWORD,
                    "BROKER_DRAIN_S": "1",
                    "BROKER_OWNERS": "2",
                    "BROKER_OPS_PORT": str(self.ops_port),
                    "BROKER_DATABASE_URL": self.database_url,
                    **self.environment,
                }
            ),
        )

    def _mark(self) -> str:
        file = self.data_dir / "instance"
        return file.read_text() if file.exists() else ""

    def _postmaster(self) -> int:
        return int((self.data_dir / "postgres" / "data" / "postmaster.pid").read_text().split("\n")[0])

    @staticmethod
    def _read(process: "subprocess.Popen[str]", lines: "queue.Queue[str]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdin, process.stdout:
            for line in process.stdout:
                lines.put(line.strip())
        lines.put("")


def _children_of(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]
