import os
import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from broker.deployments.data_dir import Claim, claim
from broker.deployments.reload_record import ReloadRecord, ReloadState, read_record, request_reload
from broker.setup_error import SetupError

PID = os.getpid()


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Claim]:
    held = claim(tmp_path / "data")
    yield held
    held.release()


def test_a_record_is_read_as_it_was_written(held: Claim) -> None:
    record = ReloadRecord(PID, 3, ReloadState.REFUSED, ("nothing is changed: why",))
    record.write(held.path)
    assert read_record(held.path) == record
    assert record.is_over
    assert not replace(record, state=ReloadState.EXCHANGING).is_over


def test_without_a_running_product_there_is_nobody_to_ask(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="no `broker up` runs on"):
        request_reload(tmp_path, 1, print)
    left = claim(tmp_path / "data")
    ReloadRecord(PID, 0, ReloadState.NONE).write(left.path)
    left.release()
    with pytest.raises(SetupError, match="no `broker up` runs on"):
        request_reload(left.path, 1, print)


def test_one_that_has_just_begun_is_not_ready(held: Claim) -> None:
    with pytest.raises(SetupError, match="is not ready"):
        request_reload(held.path, 1, print)


def test_a_reload_is_asked_for_and_waited_for(held: Claim) -> None:
    told: list[str] = []
    steps = [
        ReloadRecord(PID, 1, ReloadState.EXCHANGING, ("applied: BROKER_LOG_LEVEL",)),
        ReloadRecord(PID, 1, ReloadState.DONE, ("applied: BROKER_LOG_LEVEL", "all parts are exchanged")),
    ]
    ReloadRecord(PID, 0, ReloadState.DONE).write(held.path)

    def hear(*_: object) -> None:
        steps[0].write(held.path)

    def tell(line: str) -> None:
        told.append(line)
        steps[1].write(held.path)

    before = signal.signal(signal.SIGHUP, hear)
    try:
        left = request_reload(held.path, 60, tell)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert told == ["applied: BROKER_LOG_LEVEL"]
    assert left == replace(steps[1], lines=("all parts are exchanged",))


def test_one_that_does_not_end_is_given_up(held: Claim) -> None:
    ReloadRecord(PID, 0, ReloadState.NONE).write(held.path)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with pytest.raises(SetupError, match=re.escape("not over after 0.2 s")):
            request_reload(held.path, 0.2, print)
    finally:
        signal.signal(signal.SIGHUP, before)
