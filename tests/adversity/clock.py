"""A wall clock of an instance that a test can set; see `clock.c`."""

import struct
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("clock.c")


class SteppedClock:
    """The time of day of all processes that are started with `environment`."""

    def __init__(self, directory: Path) -> None:
        """Compile the library. Raises CalledProcessError."""
        self._file = directory / "step"
        library = directory / "clock.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, _SOURCE, "-ldl"], check=True)
        self._file.write_bytes(struct.pack("=q", 0))
        self.environment = {"LD_PRELOAD": str(library), "STEPPED_CLOCK": str(self._file)}

    def set(self, ahead_s: int) -> None:
        """Let the clock be so far ahead of the machine's."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("=q", ahead_s))
