"""The JavaScript client: its pure parts, its size, and the product in Node and in a real browser."""

import fcntl
import gzip
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deployments.go_client import build_follower
from tests.deployments.instance import PASSWORD, Instance
from tests.javascript.control import serve

ROOT = Path(__file__).parents[2] / "js" / "client"
BUILT = ROOT / ".build" / "test"
TEMPORARY = ROOT / ".build" / "tmp"
CHROMIUM = {
    "TMPDIR": str(TEMPORARY),
    "AWS_EXECUTION_ENV": "AWS_Lambda_nodejs20.x",
    "FONTCONFIG_FILE": str(ROOT / "test" / "fonts.conf"),
}
"""Where it is unpacked, once; what makes its package unpack the libraries that a bare machine lacks; and its
fonts: without any the first text crashes the page."""
MOST_BYTES = {
    "core.js": (8 << 10) + 512,
    "index.js": (12 << 10) + 512,
    "onair-broker.min.js": 15 << 10,
    "worker.js": 10 << 10,
}
"""Compressed, with everything that is loaded along; peers' clients have 8 to 58 KB."""


def run(*files: Path, timeout_s: float = 60, **environment: str) -> None:
    """Run test files of Node; fails with what they say."""
    TEMPORARY.mkdir(parents=True, exist_ok=True)
    command = [
        "node",
        "--test",
        "--test-concurrency=3",
        "--test-force-exit",
        "--test-reporter=spec",
        *map(str, files),
    ]
    variables = {**os.environ, **CHROMIUM, "ONAIR_ROOT": str(ROOT), **environment}
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


def unpack_browser() -> None:
    """Before several processes would do so at once, and run what another one still writes."""
    TEMPORARY.mkdir(parents=True, exist_ok=True)
    code = "import('@sparticuz/chromium').then((chromium) => chromium.default.executablePath())"
    with (TEMPORARY / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the tests run in several processes
        subprocess.run(["node", "-e", code], cwd=ROOT, env={**os.environ, **CHROMIUM}, check=True, timeout=60)


def run_with(instance: Instance, *names: str, timeout_s: float = 240, **environment: str) -> None:
    """Run test files of the product against an instance."""
    unpack_browser()
    with serve(instance) as control:
        run(
            *(BUILT / "product" / f"{name}.test.mjs" for name in names),
            timeout_s=timeout_s,
            ONAIR_URL=instance.url,
            ONAIR_CONTROL=control,
            ONAIR_PASSWORD=PASSWORD,
            **environment,
        )


def loaded_with(file: Path) -> set[Path]:
    """A built module and what it imports at once; what it imports later is loaded where it is needed."""
    found, waiting = set[Path](), [file]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            names = re.findall(r'(?:from|import)"(\./[^"]+)"', each.read_text())
            waiting += [each.parent / name for name in names]
    return found


def test_pure_parts() -> None:
    run(BUILT / "unit")


@pytest.mark.parametrize("name", MOST_BYTES)
def test_size(name: str) -> None:
    size = sum(len(gzip.compress(file.read_bytes(), 9)) for file in loaded_with(ROOT / "dist" / name))
    assert size <= MOST_BYTES[name]


def test_nothing_is_installed_along_and_no_address_is_locked() -> None:
    package = json.loads((ROOT / "package.json").read_text())
    locked = json.loads((ROOT / "package-lock.json").read_text())["packages"]
    assert "dependencies" not in package
    assert [
        (path, entry)
        for path, entry in locked.items()
        if path and not ("version" in entry and "integrity" in entry)
    ] == []
    assert "resolved" not in (ROOT / "package-lock.json").read_text()


@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_product(instance: Instance) -> None:
    run_with(instance, "node", "browser", "docs", "fallback", "shared", "silence", "timeline")


@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_recovery(instance: Instance, tmp_path: Path) -> None:
    """That of the client in Go too, where there is Go: another stop and start would take half a minute."""
    environment = {}
    if shutil.which("go") is not None:
        environment["ONAIR_GO"] = str(build_follower(tmp_path / "follow"))
    run_with(instance, "recovery", timeout_s=400, **environment)


@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_dropped_visitors(instance: Instance) -> None:
    run_with(instance, "dropped")
