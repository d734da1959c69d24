"""The judge finds each fault that it is there for, and none where there is none."""

from typing import Any

import pytest

from tests.adversity.judge import FINDINGS, Publish, Push, Stored, judge, short_id

# Two producers; the second publish of producer 2 was never acknowledged, but is there; seq 5 is a correction.
PUBLISHES = [
    Publish(by=1, first=0, size=2, sent_s=1.0, answered_s=1.1, seqs=[1, 2], ids=[11, 12]),
    Publish(by=2, first=0, size=1, sent_s=1.2, answered_s=1.3, seqs=[3], ids=[21]),
    Publish(by=1, first=2, size=1, sent_s=1.25, answered_s=1.5, seqs=[4], ids=[13]),
    Publish(by=2, first=1, size=2, sent_s=1.4, answered_s=None, seqs=[], ids=[]),
]
STORED = [
    Stored(1, 11, 1, 0),
    Stored(2, 12, 1, 1),
    Stored(3, 21, 2, 0),
    Stored(4, 13, 1, 2),
    Stored(6, 22, 2, 1),
    Stored(7, 23, 2, 2),
]
PUSHES = [Push(1, 11), Push(2, 12), Push(3, 21), Push(4, 13), Push(5, 12), Push(6, 22), Push(7, 23)]
SEEN = {"viewer 1": PUSHES, "viewer 2": list(PUSHES)}


def findings(**changes: Any) -> list[str]:
    show: dict[str, Any] = {"publishes": PUBLISHES, "stored": STORED, "pushes": PUSHES, "seen": SEEN}
    return judge(**show | changes)


def test_a_right_show_has_no_findings() -> None:
    assert findings() == []
    assert findings(publishes=PUBLISHES[::-1]) == []


def test_an_unacknowledged_batch_may_be_absent() -> None:
    assert findings(stored=STORED[:4], pushes=PUSHES[:5], seen={"viewer": PUSHES[:5]}) == []


@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        ({"stored": STORED[1:]}, "lost: publish 0 of producer 1 was acknowledged, 1 of 2 events are stored"),
        ({"stored": STORED[:2] + STORED[3:]}, "lost: publish 0 of producer 2 was acknowledged, 0 of 1"),
        ({"stored": [*STORED, Stored(8, 24, 2, 0)]}, "doubled: event 0 of producer 2 has seq 8 too"),
        ({"stored": [*STORED, Stored(8, 24, 2, 3)]}, "foreign: nobody published event 3 of producer 2"),
        ({"stored": STORED[:-1]}, "half a batch: of publish 1 of producer 2, 1 of 2 events are stored"),
        (
            {"stored": [*STORED[:3], Stored(4, 99, 1, 2), *STORED[4:]]},
            "changed: publish 2 of producer 1 is stored otherwise than it was acknowledged",
        ),
        (
            {"stored": [*STORED[:5], Stored(8, 23, 2, 2)]},
            "torn: publish 1 of producer 2 is stored out of order or with others in between",
        ),
        (
            {"stored": [*STORED[:4], Stored(7, 22, 2, 1), Stored(6, 23, 2, 2)]},
            "torn: publish 1 of producer 2 is stored out of order or with others in between",
        ),
        ({"pushes": PUSHES[:4] + PUSHES[5:], "seen": {}}, "the database: push 5 has seq 6"),
        ({"pushes": PUSHES[:2] + PUSHES[1:], "seen": {}}, "the database: push 3 has seq 2"),
        ({"pushes": PUSHES[1:], "seen": {}}, "the database: push 1 has seq 2"),
    ],
)
def test_what_is_stored_wrongly_is_found(changes: dict[str, Any], finding: str) -> None:
    assert finding in "\n".join(findings(**changes))


@pytest.mark.parametrize(
    ("log", "finding"),
    [
        (PUSHES[:-1], "viewer: was told only 6 of 7 pushes"),
        ([], "viewer: was told only 0 of 7 pushes"),
        (PUSHES[1:], "viewer: gap: told 2 where 1 was due"),
        (PUSHES[:4] + PUSHES[5:], "viewer: gap: told 6 where 5 was due"),
        (PUSHES[:3] + PUSHES[2:], "viewer: doubled or reordered: told 3 where 4 was due"),
        ([*PUSHES, PUSHES[-1]], "viewer: was told more 8 of 7 pushes"),
        ([PUSHES[1], PUSHES[0], *PUSHES[2:]], "viewer: gap: told 2 where 1 was due"),
        ([Push(1, 99), *PUSHES[1:]], "viewer: push 1 is of another event than the database's"),
    ],
)
def test_what_a_viewer_saw_wrongly_is_found(log: list[Push], finding: str) -> None:
    assert findings(seen={"viewer": log}) == [finding]


@pytest.mark.parametrize(
    ("sent_s", "is_found"),
    [(1.49, False), (1.5, False), (1.51, True)],  # the publish with seq 4 was acknowledged at 1.5
)
def test_what_was_acknowledged_comes_before_what_was_sent_later(sent_s: float, is_found: bool) -> None:
    late = PUBLISHES[1]._replace(sent_s=sent_s, answered_s=2.0)
    found = findings(publishes=[PUBLISHES[0], late, *PUBLISHES[2:]])
    expected = "reordered: publish 0 of producer 2 has seq 3, but was sent after 4 had been acknowledged"
    assert found == ([expected] if is_found else [])


def test_findings_are_bounded() -> None:
    many = [Publish(3, n, 1, 1.0, 1.1, [n], [n]) for n in range(100)]
    assert len(findings(publishes=many)) == FINDINGS + 1


def test_short_id_tells_events_apart() -> None:
    assert short_id("01890a5d-ac96-774b-bcce-b302099a8057") == 0xBCCEB302099A8057
