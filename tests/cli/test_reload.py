"""`broker reload`, against what a running `broker up` leaves to be read."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.cli.main import run
from broker.deployments.data_dir import Claim, claim
from broker.deployments.reload_record import ReloadRecord, ReloadState

Answer = Callable[[ReloadState, str], None]


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Claim]:
    held = claim(tmp_path / "data")
    ReloadRecord(os.getpid(), 4, ReloadState.DONE, ("all parts are exchanged",)).write(held.path)
    yield held
    held.release()


@pytest.fixture
def answer(held: Claim) -> Iterator[Answer]:
    """Sets what is answered to the signal."""

    def set_answer(state: ReloadState, line: str) -> None:
        record = ReloadRecord(os.getpid(), 5, state, ("applied: BROKER_LOG_LEVEL", line))
        signal.signal(signal.SIGHUP, lambda *_: record.write(held.path))

    before = signal.getsignal(signal.SIGHUP)
    yield set_answer
    signal.signal(signal.SIGHUP, before)


def test_what_was_done_is_told(held: Claim, answer: Answer, capsys: pytest.CaptureFixture[str]) -> None:
    answer(ReloadState.DONE, "all parts are exchanged")
    assert run(["reload", "--data-dir", str(held.path)]) == 0
    assert capsys.readouterr().out == "applied: BROKER_LOG_LEVEL\nall parts are exchanged\n"


@pytest.mark.parametrize("state", [ReloadState.REFUSED, ReloadState.FAILED])
def test_what_was_not_done_is_a_failure_of_one_line(
    held: Claim, answer: Answer, capsys: pytest.CaptureFixture[str], state: ReloadState
) -> None:
    answer(state, "nothing is changed: BROKER_DRAIN_S=x: must be a number, 0 to 600")
    assert run(["reload", "--data-dir", str(held.path)]) == 1
    told = capsys.readouterr()
    assert told.err == "error: nothing is changed: BROKER_DRAIN_S=x: must be a number, 0 to 600\n"
    assert told.out == ""


def test_nobody_to_ask_is_a_failure_of_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["reload", "--data-dir", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"error: no `broker up` runs on {tmp_path}")
    assert told.count("\n") == 1


def test_a_settings_file_that_others_may_change_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "broker.env"
    file.touch()
    file.chmod(0o666)
    monkeypatch.setenv("BROKER_SETTINGS_FILE", str(file))
    assert run(["up", "--data-dir", str(tmp_path / "data")]) == 1
    assert capsys.readouterr().err.strip().endswith(f"{file} can be written by others")
    assert not (tmp_path / "data").exists()
