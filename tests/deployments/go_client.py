"""The client in Go of `examples/go`."""

import subprocess
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "examples" / "go"


def build_follower(path: Path) -> Path:
    """Build it as `path`, which is returned."""
    subprocess.run(["go", "build", "-mod=readonly", "-o", path, "."], cwd=SOURCE, check=True, timeout=400)
    return path
