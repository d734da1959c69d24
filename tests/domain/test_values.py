"""`broker.domain.values`."""

from datetime import UTC, datetime

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from broker.clock import to_datetime, to_ms
from broker.domain.values import (
    MAX_INTEGER,
    Id,
    Integer,
    Model,
    Name,
    Time,
    format_ms,
    format_time,
    is_account_name,
    parse_time,
)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("2026-07-19", "2026-07-19T00:00:00.000Z"),
        ("2026-07-19T18:00:00Z", "2026-07-19T18:00:00.000Z"),
        ("2026-07-19T18:00:00.5+02:00", "2026-07-19T16:00:00.500Z"),
        ("2026-07-19T18:00:00", "2026-07-19T18:00:00.000Z"),
        ("2026-07-19T23:59:59.999999-00:30", "2026-07-20T00:29:59.999Z"),
        ("0342-09-03", "0342-09-03T00:00:00.000Z"),
        ("2026-07-19T24:00", "2026-07-20T00:00:00.000Z"),
        ("2026-12-31 24:00:00.000+02:00", "2026-12-31T22:00:00.000Z"),
        ("20261231t240000z", "2027-01-01T00:00:00.000Z"),
        ("2026-365T24Z", "2027-01-01T00:00:00.000Z"),
    ],
)
def test_any_offset_becomes_utc_with_milliseconds(text: str, meaning: str) -> None:
    assert format_time(parse_time(text)) == meaning


@pytest.mark.parametrize(
    "value",
    [
        "",
        "tomorrow",
        "2026-13-01",
        "0001-01-01T00:00:00+10:00",
        5,
        None,
        "2026-07-19T25:00",
        "2026-07-19T24:01",
        "2026-07-19T24:00:00.001",
        "9999-12-31T24:00",
    ],
)
def test_what_is_no_time_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="ISO 8601"):
        parse_time(value)


@given(st.integers(min_value=0, max_value=4_102_444_800_000))
def test_milliseconds_survive_the_way_through_a_datetime(ms: int) -> None:
    assert to_ms(to_datetime(ms)) == ms


@given(st.datetimes(timezones=st.just(UTC)))
def test_a_time_is_written_as_iso_8601_has_it(moment: datetime) -> None:
    assert format_time(moment) == moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@given(st.integers(min_value=0, max_value=4_102_444_800_000))
def test_milliseconds_are_written_as_their_datetime_is(ms: int) -> None:
    assert format_ms(ms) == format_time(to_datetime(ms))


def test_a_time_is_written_in_one_form() -> None:
    moment = datetime(2026, 7, 19, 18, 0, 0, 1_999, tzinfo=UTC)
    assert TypeAdapter(Time).dump_json(moment) == b'"2026-07-19T18:00:00.001Z"'


@pytest.mark.parametrize("value", ["a", "a" * 128, "A-Z.a_z~0:9"])
def test_an_id_may_be(value: str) -> None:
    assert TypeAdapter(Id).validate_python(value) == value


@pytest.mark.parametrize("value", ["", "a" * 129, "a b", "a/b", "é", "filter", ".", "..", "a\n"])
def test_an_id_may_not_be(value: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Id).validate_python(value)


@pytest.mark.parametrize("value", [MAX_INTEGER, -MAX_INTEGER, 0])
def test_an_integer_may_be(value: int) -> None:
    assert TypeAdapter(Integer).validate_python(value) == value


@pytest.mark.parametrize("value", [MAX_INTEGER + 1, -MAX_INTEGER - 1])
def test_an_integer_may_not_be(value: int) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Integer).validate_python(value)


def test_a_name_ends_at_a_thousand_characters() -> None:
    assert TypeAdapter(Name).validate_python("é" * 1_000)
    for value in ("", "é" * 1_001):
        with pytest.raises(ValidationError):
            TypeAdapter(Name).validate_python(value)


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("demo", True),
        ("a-1", True),
        ("-a", False),
        ("A", False),
        ("", False),
        ("a" * 64, False),
        ("a.b", False),
    ],
)
def test_an_account_is_a_dns_label(name: str, allowed: bool) -> None:
    assert is_account_name(name) is allowed


def test_what_a_newer_version_has_written_can_be_read() -> None:
    """An old process reads it during an upgrade; from a client the same field is refused."""

    class Part(Model):
        size: int

    class Whole(Model):
        part: Part

    written = {"part": {"size": 1, "colour": "red"}, "time": 7}
    for data in (written, orjson.dumps(written)):
        assert Whole.read(data) == Whole(part=Part(size=1))
    with pytest.raises(ValidationError):
        Whole.read({"part": {"size": "1"}})
    with pytest.raises(ValidationError):
        Whole.model_validate(written)


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00Z", "0001-01-01", "0001-01-01T01:00:00+01:00"])
def test_the_time_that_means_none_elsewhere_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be later than 0001-01-01T00:00:00Z"):
        parse_time(text)
    assert format_time(parse_time("0001-01-01T00:00:00.001Z")) == "0001-01-01T00:00:00.001Z"
