"""Each contract on imports is broken once, in a copy of the package, and the linter says so."""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CONTRACTS = [
    contract["name"]
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
]

# By contract: the module, and the line in it, that breaks this one. Some break others, too.
BREAKS = {
    "Imports run downwards": ("storage/upwards", "import broker.gateway.topics"),
    "Imports run downwards within voting, too": (
        "voting/polls/upwards",
        "import broker.voting.resources.results",
    ),
    "The SDK knows nothing of the server": ("client/serving", "import pydantic"),
    "The demonstration uses the SDK, not the server's parts": (
        "demo/reaching",
        "import broker.storage.events",
    ),
    "Only storage speaks SQL": ("resources/querying", "import asyncpg"),
    "Only actors and deployments know Ray": ("owners/placing", "import ray"),
    "Only tracing knows OpenTelemetry, and only where traces are sent": (
        "gateway/tracing",
        "import opentelemetry",
    ),
    "Doors, operations and what is below them reach Ray in no way": (
        "resources/reaching",
        "import broker.actors.pool",
    ),
    "The rules do no I/O and know no framework": ("domain/waiting", "import asyncio"),
    "What a function works with is passed to it: only a database's unit of work is a context variable": (
        "operations/hiding",
        "import contextvars",
    ),
    "Analytics keeps nothing and knows nobody's rights": (
        "analytics/keeping",
        "import broker.storage.events",
    ),
    "Only broker.images decodes images": ("rest/decoding", "import PIL"),
    "Only the processes that decode load decoders": ("images/jobs", "import pyvips"),
}


@pytest.fixture(scope="module")
def complaints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What the linter says of each contract, for a copy in which every one is broken."""
    copy = tmp_path_factory.mktemp("broken")
    left_out = shutil.ignore_patterns("*.so", "__pycache__", "built", "migrations")
    shutil.copytree(ROOT / "python" / "broker", copy / "broker", ignore=left_out)
    for place, line in BREAKS.values():
        with (copy / "broker" / f"{place}.py").open("a") as module:
            module.write(f"\n{line}\n")
    (copy / "broker" / "attic.py").touch()
    program = Path(sys.executable).parent / "lint-imports"
    command = [program, "--no-cache", "--config", ROOT / "pyproject.toml"]
    environment = os.environ | {"PYTHONPATH": str(copy), "COLUMNS": "200"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=copy, env=environment)
    sections = dict.fromkeys(CONTRACTS, "")
    now = ""
    for line in done.stdout.partition("Broken contracts")[2].splitlines():
        now = line if line in sections else now
        if now:
            sections[now] += f"{line}\n"
    yield sections
    shutil.rmtree(copy)


@pytest.mark.parametrize("contract", CONTRACTS)
def test_a_contract_that_is_broken_is_told(contract: str, complaints: dict[str, str]) -> None:
    place, line = BREAKS[contract]
    assert f"broker.{place.replace('/', '.')} -> {line.removeprefix('import ')}" in complaints[contract]


def test_a_room_on_no_floor_is_told(complaints: dict[str, str]) -> None:
    assert "broker.attic" in complaints[CONTRACTS[0]]
