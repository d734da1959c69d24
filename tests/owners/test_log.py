from hypothesis import given
from hypothesis import strategies as st

from broker.owners.log import ENTRY_OVERHEAD_BYTES, Log, LogLimits, Step
from broker.owners.protocol import Entry


def step(seq: int, size: int = 0, added_s: float = 0.0) -> Step:
    return Step(Entry(0, "e", seq, "event", b"x" * size), "e", seq, added_s)


def filled(limits: LogLimits, count: int, size: int = 0) -> Log:
    log = Log(limits)
    for seq in range(count):
        log.append(step(seq, size, float(seq)))
    return log


def test_log_keeps_at_most_its_number_of_entries() -> None:
    log = filled(LogLimits(entries=3), 4)
    log.trim(4.0)
    assert (log.first, log.end) == (1, 4)
    assert [s.seq for s in log.since(1, 10)] == [1, 2, 3]


def test_log_keeps_at_most_its_bytes_but_always_the_newest() -> None:
    log = filled(LogLimits(bytes=2 * (10 + ENTRY_OVERHEAD_BYTES)), 3, size=10)
    log.trim(3.0)
    assert [s.seq for s in log.since(log.first, 10)] == [1, 2]
    small = filled(LogLimits(bytes=1), 2, size=10)
    small.trim(2.0)
    assert [s.seq for s in small.since(small.first, 10)] == [1]


def test_log_forgets_by_age() -> None:
    log = filled(LogLimits(age_s=5.0), 10)
    log.trim(9.0)
    assert log.first == 4


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 5), st.integers(1, 2_000))
def test_what_is_kept_is_the_newest_without_a_hole(sizes: list[int], entries: int, size: int) -> None:
    log = Log(LogLimits(entries=entries, bytes=size))
    for seq, bytes_ in enumerate(sizes):
        log.append(step(seq, bytes_))
        assert log.end == seq + 1
        assert [s.seq for s in log.since(log.first, 1_000)] == list(range(log.first, log.end))
        held = log.since(log.first, 1_000)
        assert log.bytes == sum(len(s.entry.params) + ENTRY_OVERHEAD_BYTES for s in held)
        assert len(held) <= 2 * entries
