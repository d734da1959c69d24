import os
from pathlib import Path

import pytest

from broker.deployments.ray_internals import ray_logs
from broker.deployments.ray_internals.ray_logs import attach, prune

GONE = 1 << 22  # the kernel gives no process this number (PID_MAX_LIMIT)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "log").mkdir(mode=0o700)
    return tmp_path / "log"


def make_session(tmp_path: Path, log: Path, name: str, *files: str, age_s: int = 0) -> Path:
    attach(tmp_path / "ray" / name, log)
    directory = log / "ray" / name
    (directory / "serve").mkdir()
    for number, file in enumerate(files):
        (directory / file).write_bytes(bytes(100))
        os.utime(directory / file, (1_000_000 - age_s + number,) * 2)
    return directory


def test_what_ray_writes_into_its_session_is_kept(tmp_path: Path, log: Path) -> None:
    make_session(tmp_path, log, "session_1")
    (tmp_path / "ray" / "session_1" / "logs" / "raylet.out").write_text("here")
    assert (log / "ray" / "session_1" / "raylet.out").read_text() == "here"
    assert (log / "ray").stat().st_mode & 0o777 == 0o700


def test_oldest_files_go_first_and_sessions_with_them(tmp_path: Path, log: Path) -> None:
    first = make_session(tmp_path, log, "session_1", "raylet.out", "serve/proxy.log", age_s=100)
    second = make_session(tmp_path, log, "session_2", f"worker-{GONE}.err", "raylet.out")
    prune(log, 400)
    assert (first / "raylet.out").exists()
    prune(log, 300)
    assert not (first / "raylet.out").exists()
    assert (first / "serve" / "proxy.log").exists()
    prune(log, 200)
    assert not first.exists()
    prune(log, 100)
    assert [path.name for path in second.iterdir() if path.is_file()] == ["raylet.out"]


def test_file_of_a_living_process_stays(tmp_path: Path, log: Path) -> None:
    names = (f"worker-ab-{os.getpid()}.err", f"event_CORE_WORKER_{os.getpid()}.log.1", "raylet.out")
    session = make_session(tmp_path, log, "session_1", *names)
    prune(log, 0)
    assert {path.name for path in session.iterdir() if path.is_file()} == set(names)


def test_number_of_files_is_bounded_too(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_logs, "_FILES", 2)
    session = make_session(tmp_path, log, "session_1", *(f"worker-{n}-{GONE}.err" for n in range(5)))
    prune(log, 1 << 30)
    assert {path.name for path in session.iterdir() if path.is_file()} == {
        f"worker-{n}-{GONE}.err" for n in (3, 4)
    }


def test_without_logs_there_is_nothing_to_remove(log: Path) -> None:
    prune(log, 0)
