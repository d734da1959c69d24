"""What somebody gets who installs the SDK alone."""

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from broker import __version__
from broker.client import AsyncClient
from tests.client import wheel

HEAVY = {"asyncpg", "orjson", "pydantic", "ray", "rich", "typer", "uvicorn", "yaml"}
LATER = {"anyio", "click", "httpcore", "httpx", "pygments", "rich", "websockets"}
LOADED = "import json, sys; import broker.client; print(json.dumps(sorted(sys.modules)))"
USED = "import broker.client.connection_pool, broker.client.websocket; " + LOADED


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel.build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def python(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has only the wheel and what it needs."""
    return wheel.install(built, tmp_path_factory.mktemp("environment"))


@pytest.fixture(scope="module")
def used(python: Path) -> set[str]:
    """The modules that a client loads until it is connected."""
    return modules_after(python, USED)


def modules_after(python: Path | str, program: str) -> set[str]:
    return set(json.loads(subprocess.check_output([python, "-I", "-c", program], text=True)))


def test_the_wheel_is_for_every_platform(built: Path) -> None:
    assert built.name == f"onair_broker_client-{__version__}-py3-none-any.whl"
    names = zipfile.ZipFile(built).namelist()
    assert [name for name in names if name.endswith((".so", ".pyd", ".dylib"))] == []


def test_the_wheel_has_what_the_sdk_imports_and_no_more(built: Path, used: set[str]) -> None:
    ours = {name for name in used if name.split(".")[0] == "broker"}
    assert wheel.modules(built) == ours, "only-include in python/pyproject.toml names what the SDK imports"


def test_the_sdk_loads_nothing_of_the_server(used: set[str]) -> None:
    foreign = {name.split(".")[0] for name in used} & HEAVY
    assert foreign == set(), "the SDK loads libraries that its users do not need"
    assert "broker._native" not in used, "the SDK loads the native library"


def test_importing_the_sdk_loads_no_library_that_only_a_connection_needs(python: Path) -> None:
    """What makes an import slow is what it loads, so that is counted and not the time."""
    # The second has the command lines of httpx and click, too, which httpx imports where they are.
    for interpreter in (python, sys.executable):
        loaded = modules_after(interpreter, LOADED)
        early = {name.split(".")[0] for name in loaded} & LATER
        assert early == set(), f"`import broker.client` loads {sorted(early)} before anything is connected"
        assert len(loaded) < 250, f"`import broker.client` loads {len(loaded)} modules; 190 were enough"


def test_both_distributions_agree() -> None:
    client = tomllib.loads((wheel.ROOT / "python" / "pyproject.toml").read_text())["project"]
    server = tomllib.loads((wheel.ROOT / "pyproject.toml").read_text())["project"]
    assert client["version"] == server["version"] == __version__
    assert client["requires-python"] == server["requires-python"]
    assert set(client["dependencies"]) <= set(server["dependencies"]), "the server's package has the SDK too"


def test_a_client_is_made_where_nothing_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows has no `os.register_at_fork`."""
    monkeypatch.delattr(os, "register_at_fork")
    AsyncClient("http://demo.localhost:8000")
