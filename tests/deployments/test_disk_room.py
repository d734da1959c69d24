"""A full disk of the embedded PostgreSQL is told by the health of the database."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from broker.deployments import disk_room, health
from broker.deployments.health import HealthChecks
from broker.owners.known_placement import KnownPlacement
from broker.settings import Settings
from tests.auth.services import open_database

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The directory of the embedded server's data."""
    path = tmp_path / "postgres" / "data"
    path.mkdir(parents=True)
    return path


def leave(monkeypatch: pytest.MonkeyPatch, free_bytes: int) -> list[Path]:
    """Every disk has so much room from now on; which are asked is in the list."""
    asked: list[Path] = []
    real = shutil.disk_usage(Path.cwd())

    def usage(path: Path) -> Any:
        asked.append(path)
        return real._replace(free=free_bytes)

    monkeypatch.setattr(disk_room.shutil, "disk_usage", usage)
    return asked


async def state_of(settings: Settings, dsn: str) -> str:
    """What the check of the database says; the others would look for owners and counters."""
    async with open_database(dsn) as database:
        checks = HealthChecks(settings, database, KnownPlacement(1))
        return await health._state(checks._answering_database())


@pytest.mark.parametrize(
    ("free_bytes", "state"),
    [
        (64 << 20, "ok"),
        ((64 << 20) - 1, "the disk is full: 63 MiB free"),
        (0, "the disk is full: 0 MiB free"),
    ],
)
async def test_a_full_disk_is_told(
    migrated_dsn: str,
    tmp_path: Path,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    free_bytes: int,
    state: str,
) -> None:
    asked = leave(monkeypatch, free_bytes)
    assert await state_of(Settings(data_dir=tmp_path), migrated_dsn) == state
    assert asked == [data]


async def test_the_disk_of_another_server_is_not_looked_at(
    migrated_dsn: str, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = leave(monkeypatch, 0)
    settings = Settings(data_dir=tmp_path, database_url=migrated_dsn)
    assert await state_of(settings, migrated_dsn) == "ok"
    assert asked == []


async def test_a_node_without_the_database_tells_nothing_of_its_disk(
    migrated_dsn: str, tmp_path: Path
) -> None:
    assert await state_of(Settings(data_dir=tmp_path / "none"), migrated_dsn) == "ok"
