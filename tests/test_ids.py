"""`broker.ids`."""

from uuid import UUID

from broker.ids import IdSource


class StoppedClock:
    def __init__(self, ms: int) -> None:
        self.ms = ms

    def now_ms(self) -> int:
        return self.ms

    def monotonic_s(self) -> float:
        return self.ms / 1000


def test_uuid7_has_version_variant_and_time() -> None:
    value = UUID(IdSource(StoppedClock(1_700_000_000_123)).uuid7())
    assert value.version == 7
    assert value.variant == "specified in RFC 4122"
    assert value.int >> 80 == 1_700_000_000_123


def test_uuid7_grows_while_the_clock_stands_still_or_steps_back() -> None:
    clock = StoppedClock(1_700_000_000_000)
    ids = IdSource(clock)
    made = [ids.uuid7() for _ in range(5_000)]
    clock.ms -= 60_000
    made += [ids.uuid7() for _ in range(10)]
    assert made == sorted(set(made))


def test_epochs_differ() -> None:
    ids = IdSource(StoppedClock(0))
    assert len({ids.epoch() for _ in range(1_000)}) == 1_000
