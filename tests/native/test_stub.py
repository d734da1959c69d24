"""The stub of the native module says what the module is."""

import os
import subprocess
import sys
from pathlib import Path

import broker


def test_stub_and_module_agree(tmp_path):
    sources = str(Path(broker.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "broker._native"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": sources, "PYTHONPATH": sources},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
