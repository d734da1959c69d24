"""The figures of outages from pauses."""

from tests.adversity.figures import Fault, Outage, Pause, outages, publish_pauses, table
from tests.adversity.judge import Publish


def publish(answered_s: float | None) -> Publish:
    return Publish(1, 0, 1, 0.0, answered_s, [1], [1])


def test_pauses_lie_between_acknowledgements() -> None:
    assert publish_pauses([publish(3.0), publish(None), publish(1.0), publish(1.5)]) == [
        Pause(1.0, 1.5),
        Pause(1.5, 3.0),
    ]


def test_outage_is_the_longest_pause_that_touches_the_fault() -> None:
    fault = Fault("kill", 10.0, 12.0)
    programs = [[Pause(0.0, 9.0), Pause(9.5, 10.5)], [Pause(11.5, 14.0), Pause(14.0, 99.0)]]
    viewers = [[Pause(3.0, 10.0), Pause(12.0, 15.0)]]
    assert outages([fault], programs, viewers) == [Outage(fault, 2.5, 0.0)]


def test_table_has_a_row_for_each_name() -> None:
    found = [Outage(Fault("kill", 0.0, 1.0), float(n), 2.0 * n) for n in (1, 2, 6)]
    assert table(found).splitlines()[2:] == ["| kill | 3 | 2.0 s, 6.0 s | 4.0 s, 12.0 s |"]
