"""The JavaScript client: its pure parts, its size, and the product in Node and in a real browser."""

import gzip
import os
import subprocess
from pathlib import Path

import pytest

from tests.deployments.instance import PASSWORD, Instance
from tests.javascript.control import serve

ROOT = Path(__file__).parents[2] / "js" / "client"
BUILT = ROOT / ".build" / "test"
TEMPORARY = ROOT / ".build" / "tmp"
"""Chromium is unpacked here, once."""


def run(*files: Path, timeout_s: float = 60, **environment: str) -> None:
    """Run test files of Node; fails with what they say."""
    TEMPORARY.mkdir(parents=True, exist_ok=True)
    command = ["node", "--test", "--test-force-exit", "--test-reporter=spec", *map(str, files)]
    variables = {**os.environ, "TMPDIR": str(TEMPORARY), "ONAIR_ROOT": str(ROOT), **environment}
    result = subprocess.run(
        command,
        cwd=ROOT,
        env=variables,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=timeout_s,
    )
    assert result.returncode == 0, result.stdout[-20_000:]


def run_with(instance: Instance, *names: str, timeout_s: float = 240) -> None:
    """Run test files of the product against an instance."""
    with serve(instance) as control:
        run(
            *(BUILT / "product" / f"{name}.test.mjs" for name in names),
            timeout_s=timeout_s,
            ONAIR_URL=instance.url,
            ONAIR_CONTROL=control,
            ONAIR_PASSWORD=PASSWORD,
        )


def test_pure_parts() -> None:
    run(BUILT / "unit")


@pytest.mark.cluster
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["node", "browser", "recovery"])
def test_product(instance: Instance, name: str) -> None:
    run_with(instance, name)
