"""Ends the PostgreSQL servers that a test run leaves, however the run ended: run as a program beside it.

The standard input is a pipe whose other end only the run has, so it ends with the run, also by `kill -9`.
Then every server with its data directory below the one that the only argument names is stopped.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from broker.settings import child_environment
from broker.storage.embedded import process

_ROOT = Path(__file__).parents[1]


@contextmanager
def swept(directory: Path) -> Iterator[None]:
    """Let no server below `directory` outlive the block, nor this process."""
    sweeper = subprocess.Popen(
        [sys.executable, "-m", "tests.sweep", str(directory)],
        stdin=subprocess.PIPE,
        cwd=_ROOT,
        env=child_environment({}),
        start_new_session=True,  # what ends the run by its group or its terminal is not for it
    )
    try:
        yield
    finally:
        sweeper.communicate()


def main(directory: Path) -> None:
    """Wait for the end of the run, then sweep."""
    sys.stdin.buffer.read()
    for folder, _, files in os.walk(directory):
        if "postmaster.pid" in files:
            process.stop(Path(folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
