"""The layers that `pyproject.toml` draws."""

import subprocess
import sys
from pathlib import Path


def test_imports_run_downwards() -> None:
    # In a process of its own: the linter switches off the loggers of the one it runs in.
    program = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([program, "--no-cache"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
