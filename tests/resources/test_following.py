from typing import Any

import pytest

from broker.errors import InvalidRequest
from broker.resources.following import parse_subscribe, parse_unsubscribe


def fields(params: dict[str, Any]) -> list[str]:
    with pytest.raises(InvalidRequest) as caught:
        parse_subscribe(params)
    return [fault.field for fault in caught.value.faults]


def test_program_is_enough() -> None:
    parsed = parse_subscribe({"programId": "final"})
    assert parsed.program_id == "final"
    assert parsed.since is None


def test_null_means_absent() -> None:
    params = {"programId": "final", "channel": None, "since": None, "history": None}
    assert parse_subscribe(params).program_id == "final"


def test_since_carries_epoch_and_seq() -> None:
    parsed = parse_subscribe({"programId": "final", "since": {"epoch": "e", "seq": 0}})
    assert parsed.since is not None
    assert (parsed.since.epoch, parsed.since.seq) == ("e", 0)


@pytest.mark.parametrize("since", ["0198b2c46f007a11:41", 41, [], True])
def test_since_in_another_form_is_told_its_form(since: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^since: must be an object with epoch and seq$"):
        parse_subscribe({"programId": "final", "since": since})


@pytest.mark.parametrize("history", [0, 1, 2**53])
def test_history_is_a_count(history: int) -> None:
    assert parse_subscribe({"programId": "final", "history": history}).history == history


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({}, "programId"),
        ({"programId": "a", "channel": "programs"}, "programId"),
        ({"programId": ""}, "programId"),
        ({"programId": "a/b"}, "programId"),
        ({"programId": "a" * 129}, "programId"),
        ({"programId": 1}, "programId"),
        ({"channel": ""}, "channel"),
        ({"channel": "c" * 257}, "channel"),
        ({"programId": "a", "since": {"epoch": "e"}}, "since.seq"),
        ({"programId": "a", "since": {"epoch": "e", "seq": -1}}, "since.seq"),
        ({"programId": "a", "since": {"epoch": "e", "seq": 1.5}}, "since.seq"),
        ({"programId": "a", "since": {"epoch": "e", "seq": 2**53 + 1}}, "since.seq"),
        ({"programId": "a", "since": {"epoch": "", "seq": 1}}, "since.epoch"),
        ({"programId": "a", "since": {"epoch": "e", "seq": 1, "x": 1}}, "since.x"),
        ({"programId": "a", "since": 5}, "since"),
        ({"programId": "a", "history": -1}, "history"),
        ({"programId": "a", "history": 2**53 + 1}, "history"),
        ({"programId": "a", "history": True}, "history"),
        ({"programId": "a", "history": 1, "since": {"epoch": "e", "seq": 1}}, "history"),
        ({"channel": "programs", "history": 1}, "history"),
        ({"channel": "programs", "since": {"epoch": "e", "seq": 1}}, "since"),
        ({"programId": "a", "extra": 1}, "extra"),
        ({"program_id": "a"}, "program_id"),
    ],
)
def test_fault_names_its_field(params: dict[str, Any], field: str) -> None:
    assert field in fields(params)


def test_unsubscribe_takes_a_target_only() -> None:
    assert parse_unsubscribe({"channel": "programs"}).channel == "programs"
    with pytest.raises(InvalidRequest, match="history"):
        parse_unsubscribe({"programId": "a", "history": 1})
