"""`broker.domain.programs`."""

import pytest
from pydantic import ValidationError
from pydantic_core import to_json

from broker.clock import to_ms
from broker.domain.programs import Access, Program, ProgramResource, ProgramStatus, program_json
from broker.domain.values import parse_time

START, END = "2026-07-19T18:00:00Z", "2026-07-19T20:00:00Z"


def program(**fields: object) -> Program:
    made = {"id": "final", "name": "Final", "createdTime": START, "updatedTime": START}
    return Program.model_validate(made | fields)


@pytest.mark.parametrize(
    ("now", "status"),
    [
        ("2026-07-19T17:59:59.999Z", ProgramStatus.SCHEDULED),
        (START, ProgramStatus.LIVE),
        ("2026-07-19T19:59:59.999Z", ProgramStatus.LIVE),
        (END, ProgramStatus.ENDED),
    ],
)
def test_a_program_is_live_from_its_start_until_its_end(now: str, status: ProgramStatus) -> None:
    made = program(scheduledStartTime=START, scheduledEndTime=END)
    assert made.status(to_ms(parse_time(now))) is status


@pytest.mark.parametrize("times", [{}, {"scheduledStartTime": START}, {"scheduledEndTime": END}])
def test_a_program_without_both_times_is_scheduled(times: dict[str, object]) -> None:
    assert program(**times).status(to_ms(parse_time("2030-01-01"))) is ProgramStatus.SCHEDULED


def test_the_end_may_equal_the_start_and_not_lie_before_it() -> None:
    program(scheduledStartTime=START, scheduledEndTime=START)
    with pytest.raises(ValidationError, match="scheduledEndTime"):
        program(scheduledStartTime=END, scheduledEndTime=START)


def test_a_program_is_public_unless_told() -> None:
    assert program().access is Access.PUBLIC
    assert program(access="private").access is Access.PRIVATE


def test_the_resource_tells_whether_the_program_is_live() -> None:
    made = program(scheduledStartTime=START, scheduledEndTime=END)
    resource = ProgramResource.of(made, to_ms(parse_time(START)))
    assert resource.model_dump(mode="json")["live"] is True
    assert resource.model_dump(mode="json")["scheduledEndTime"] == "2026-07-19T20:00:00.000Z"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"scheduledStartTime": START, "scheduledEndTime": END, "projectId": "p", "access": "private"},
        {"name": '\u00e9\u2028"\\\x01\U0001f600', "metadata": {"a": [1, -0.5, 1e300, None, {"b": "\x7f"}]}},
    ],
)
@pytest.mark.parametrize("now", [START, END])
def test_json_made_by_hand_is_that_of_the_resource(fields: dict[str, object], now: str) -> None:
    made, now_ms = program(**fields), to_ms(parse_time(now))
    assert program_json(made, now_ms) == to_json(ProgramResource.of(made, now_ms), by_alias=True)
