"""A program under measurement: started, spoken to line by line, weighed and ended."""

import json
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

STOP_S = 15.0


class ChildError(Exception):
    """A program has ended, or does not answer as it should."""


class Child:
    """A child process with pipes for its commands and answers; ends with the `with` block."""

    def __init__(
        self, command: Sequence[str | Path], directory: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._name = Path(command[0]).name
        self._weighed: Sequence[int] = ()
        self._process = subprocess.Popen(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the child's input, by which it ends; insist if it does not."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        self._process.stdout.close()

    def send(self, command: str) -> None:
        """Give the child one command."""
        assert self._process.stdin
        try:
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ChildError(f"{self._name} has ended with status {self._process.wait()}") from None

    def receive(self) -> dict[str, Any]:
        """The child's next line, which is a JSON object."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise ChildError(f"{self._name} has ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def receive_serving(self) -> str:
        """Wait until a contender says that it serves; from then on what it names is weighed. Its version."""
        serving = self.receive()
        self._weighed = serving.get("pids") or ()
        return str(serving["version"])

    def cpu_s(self) -> float:
        """CPU seconds, user and system, of all threads alive."""
        tasks = [task for pid in self._pids() for task in Path(f"/proc/{pid}/task").iterdir()]
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def memory_bytes(self) -> int:
        """Resident memory that is the processes' own: what would come back if they ended."""
        return sum(read_private_bytes(pid) for pid in self._pids())

    def _pids(self) -> Sequence[int]:
        return self._weighed or (self._process.pid,)


def read_private_bytes(pid: int) -> int:
    """Resident memory of a process that it shares with no other."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    sizes = {line.split(":")[0]: line.split()[1] for line in text.splitlines()[1:]}
    return (int(sizes["Private_Dirty"]) + int(sizes["Private_Clean"])) * 1024
