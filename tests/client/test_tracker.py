"""The tracker against a model of the broker: whatever is cut, repeated or missed, the story is told once."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.client.cursor import Cursor
from broker.client.errors import HistoryLost, ProgramDeleted, ProtocolError, Unsubscribed
from broker.client.models import Event, EventDeleted, EventsDeleted, EventUpdated, HistoryReplaced
from broker.client.tracker import Gap, Tracker
from tests.client.peer import event


def _result(epoch: str, seq: int, events: list[Any] | None = None, recovered: bool = True) -> dict[str, Any]:
    return {
        "programId": "final",
        "epoch": epoch,
        "seq": seq,
        "recovered": recovered,
        "events": events or [],
    }


def _open(seq: int = 0, epoch: str = "e1") -> Tracker:
    tracker = Tracker("final")
    tracker.open(_result(epoch, seq))
    return tracker


def test_first_subscribe_names_only_the_program() -> None:
    assert Tracker("final").params() == {"programId": "final"}


def test_history_is_asked_for_until_there_is_a_cursor() -> None:
    tracker = Tracker("final", history=5)
    assert tracker.params() == {"programId": "final", "history": 5}
    tracker.open(_result("e1", 7))
    assert tracker.params() == {"programId": "final", "since": {"epoch": "e1", "seq": 7}}


def test_cursor_says_what_it_has_seen() -> None:
    tracker = Tracker("final")
    tracker.open(_result("e1", 7) | {"id": "of-7"})
    assert tracker.params()["since"] == {"epoch": "e1", "seq": 7, "id": "of-7"}
    tracker.take("event", event(8))
    assert tracker.params()["since"]["id"] == event(8)["id"]
    tracker.take("eventDeleted", {"programId": "final", "epoch": "e1", "seq": 9, "id": "of-2"})
    assert tracker.params()["since"] == {"epoch": "e1", "seq": 9, "id": "of-2"}
    tracker.take("historyReplaced", {"programId": "final", "epoch": "e2", "seq": 3})
    assert tracker.params()["since"] == {"epoch": "e2", "seq": 3}


def test_cursor_without_an_id_takes_that_of_the_answer() -> None:
    tracker = Tracker("final", Cursor("e1", 7))
    tracker.open(_result("e1", 7) | {"id": "of-7"})
    assert tracker.params()["since"]["id"] == "of-7"


def test_since_wins_over_history() -> None:
    assert "history" not in Tracker("final", Cursor("e1", 3), 5).params()


def test_negative_history_is_refused() -> None:
    with pytest.raises(ValueError, match="history"):
        Tracker("final", history=-1)


def test_next_push_is_handed_out_and_moves_the_cursor() -> None:
    tracker = _open(41)
    change = tracker.take("event", event(42))
    assert isinstance(change, Event)
    assert change.seq == 42
    assert tracker.cursor == Cursor("e1", 42)


def test_push_at_the_cursor_is_a_repeat() -> None:
    tracker = _open(41)
    assert tracker.take("event", event(41)) is None
    assert tracker.cursor == Cursor("e1", 41)


def test_push_beyond_the_next_is_a_gap() -> None:
    tracker = _open(41)
    with pytest.raises(Gap):
        tracker.take("event", event(43))
    assert tracker.cursor == Cursor("e1", 41)


def test_push_of_another_epoch_is_a_gap() -> None:
    with pytest.raises(Gap):
        _open(41).take("event", event(42, epoch="e2"))


def test_push_of_another_program_is_passed_over() -> None:
    tracker = _open(41)
    assert tracker.take("event", event(42, program="other")) is None
    assert tracker.cursor == Cursor("e1", 41)


def test_change_and_deletion_count_as_pushes() -> None:
    tracker = _open(1)
    assert isinstance(tracker.take("eventUpdated", event(2)), EventUpdated)
    deleted = tracker.take("eventDeleted", {"seq": 3, "epoch": "e1", "programId": "final", "id": "x"})
    assert deleted == EventDeleted(3, "e1", "final", "x")


def test_import_begins_an_epoch_at_its_seq() -> None:
    tracker = _open(9)
    change = tracker.take("historyReplaced", {"programId": "final", "epoch": "e2", "seq": 100})
    assert change == HistoryReplaced("final", "e2", 100)
    assert isinstance(tracker.take("event", event(101, epoch="e2")), Event)


def test_history_that_is_replaced_ahead_in_its_epoch_goes_on_there() -> None:
    tracker = _open(9)
    params = {"programId": "final", "epoch": "e1", "seq": 12}
    assert tracker.take("historyReplaced", params) == HistoryReplaced("final", "e1", 12)
    assert tracker.take("historyReplaced", params) is None
    assert isinstance(tracker.take("event", event(13)), Event)


def test_delete_all_begins_an_epoch_at_nought() -> None:
    tracker = _open(9)
    params = {"programId": "final", "deleted": 9, "epoch": "e2", "seq": 0}
    assert tracker.take("eventsDeleted", params) == EventsDeleted("final", 9, "e2")
    assert tracker.take("eventsDeleted", params) is None
    assert isinstance(tracker.take("event", event(1, epoch="e2")), Event)


def test_unrecovered_subscription_has_lost_history() -> None:
    tracker = Tracker("final", Cursor("e0", 3))
    with pytest.raises(HistoryLost) as lost:
        tracker.open(_result("e1", 7, recovered=False))
    assert (lost.value.epoch, lost.value.seq) == ("e1", 7)


def test_first_subscription_needs_no_recovery() -> None:
    assert Tracker("final").open(_result("e1", 7, recovered=False)) == []


def test_recovered_events_go_on_from_the_cursor() -> None:
    tracker = Tracker("final", Cursor("e1", 3))
    changed = event(5) | {"method": "eventUpdated"}
    changes = tracker.open(_result("e1", 5, [event(4), changed]))
    assert [type(change) for change in changes] == [Event, EventUpdated]
    assert tracker.cursor == Cursor("e1", 5)


def test_recovery_with_a_hole_breaks_the_protocol() -> None:
    with pytest.raises(ProtocolError, match="gap"):
        Tracker("final", Cursor("e1", 3)).open(_result("e1", 5, [event(5)]))


def test_recovery_that_ends_elsewhere_breaks_the_protocol() -> None:
    with pytest.raises(ProtocolError, match="recovery ended"):
        Tracker("final", Cursor("e1", 3)).open(_result("e1", 2))


def test_wanted_history_begins_anywhere() -> None:
    tracker = Tracker("final", history=2)
    assert [change.seq for change in tracker.open(_result("e1", 9, [event(8), event(9)]))] == [8, 9]  # type: ignore[union-attr]


def test_deleted_program_ends_the_subscription() -> None:
    with pytest.raises(ProgramDeleted):
        _open().take("programDeleted", {"programId": "final"})


def test_unsubscribed_tells_the_reason() -> None:
    with pytest.raises(Unsubscribed, match="private"):
        _open().take("unsubscribed", {"programId": "final", "reason": "private"})


@pytest.mark.parametrize(
    "result", [None, [], {"epoch": "e1"}, {"epoch": 1, "seq": 1}, {"epoch": "e", "seq": -1}]
)
def test_malformed_answer_breaks_the_protocol(result: Any) -> None:
    with pytest.raises(ProtocolError):
        Tracker("final").open(result)


@given(st.integers(0, 40), st.integers(0, 2**32), st.floats(0, 0.6))
def test_every_push_is_handed_out_once_and_in_order(start: int, seed: int, fault_rate: float) -> None:
    """A broker that repeats, skips and cuts at random, and recovers from the cursor on each connection."""
    draw = random.Random(seed)
    log = [event(seq) for seq in range(1, 61)]
    tracker = Tracker("final")
    seen: list[int] = []
    head, is_first = start, True
    while not seen or seen[-1] < 60:
        if is_first:
            items, is_first = [], False
        else:
            since = tracker.params()["since"]["seq"]
            items = log[since : min(head, since + 5)]
        position = items[-1]["seq"] if items else tracker.params().get("since", {"seq": head})["seq"]
        seen += [change.seq for change in tracker.open(_result("e1", position, items))]  # type: ignore[union-attr]
        try:
            while position < 60:
                fault = draw.random() < fault_rate
                step = draw.choice([-3, 0, 2]) if fault else 1
                if fault and draw.random() < 0.3:
                    break
                seq = min(60, max(1, position + step))
                position = max(position, seq)
                head = max(head, position)
                change = tracker.take("event", log[seq - 1])
                if change is not None:
                    seen.append(change.seq)  # type: ignore[union-attr]
        except Gap:
            pass
    assert seen == list(range(start + 1, 61))
