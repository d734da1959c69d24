"""`broker.ids`."""

import os
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


def test_uuid7_of_a_clock_that_has_not_begun_is_whole() -> None:
    value = UUID(IdSource(StoppedClock(0)).uuid7())
    assert (value.version, value.int >> 80) == (7, 0)


def test_uuid7_grows_while_the_clock_stands_still_or_steps_back() -> None:
    clock = StoppedClock(1_700_000_000_000)
    ids = IdSource(clock)
    made = [ids.uuid7() for _ in range(5_000)]
    clock.ms -= 60_000
    made += [ids.uuid7() for _ in range(10)]
    assert made == sorted(set(made))
    assert {id_[19] for id_ in made} == set("89ab")  # the variant, before random bits


def test_uuid7_of_a_subject_is_one_for_each_scope() -> None:
    ids = IdSource(StoppedClock(1_700_000_000_123))
    scope, other = ids.uuid7(), ids.uuid7()
    made = {ids.uuid7_of(str(number), scope) for number in range(1_000)}
    assert len(made) == 1_000
    assert {(UUID(id_).version, UUID(id_).variant) for id_ in made} == {(7, "specified in RFC 4122")}
    assert {UUID(id_).int >> 80 for id_ in made} == {1_700_000_000_123}
    assert ids.uuid7_of("7", scope) in made
    assert ids.uuid7_of("7", other) not in made


def test_a_fork_makes_other_identifiers() -> None:
    ids = IdSource(StoppedClock(1_700_000_000_000))
    ids.uuid7()  # some random numbers are there now
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, ids.uuid7().encode())
        os._exit(0)
    os.waitpid(child, 0)
    own, forked = ids.uuid7(), os.read(reader, 100).decode()
    os.close(reader)
    os.close(writer)
    assert own[:19] == forked[:19]  # time and counter
    assert own[19:] != forked[19:]


def test_epochs_differ() -> None:
    ids = IdSource(StoppedClock(0))
    assert len({ids.epoch() for _ in range(1_000)}) == 1_000
