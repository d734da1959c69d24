"""Polls: what an event declares, what a vote and an impression look like, and the form of results.

An event is the *context* of the answers that name its id. Its metadata declares what it asks:
`{"title", "measureName", "options": [label or {"label"}], "opens", "closes" (ms or ISO 8601),
"allowChange", "visitors", "watched"}`. Producers write metadata freely, so what is malformed there counts as
absent and never makes an event unusable. What limits a poll is taken for the strictest when it is malformed,
for a limit was meant: `visitors` for `signed`, `opens` for never, `closes` for long ago, `options` for none.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field, PlainValidator, WithJsonSchema

from broker.clock import to_ms
from broker.domain.titles import camel_case
from broker.domain.values import MAX_INTEGER, Model, parse_time

MAX_OPTION = 999
_UUID_CHARACTERS = 36
MAX_TEXT_CHARACTERS = 128
MAX_SIGNED_CHARACTERS = 1_024
MAX_MEASURE_CHARACTERS = 200
UNNAMED = "poll"
"""The measure of a title without a letter or digit, such as one of emoji."""

# What ends no line, turns no text round and can be seen: no controls (C0, C1) and no invisible formatting.
_UNPRINTABLE = "\\u0000-\\u001f\\u007f-\\u009f\\u200b-\\u200f\\u2028-\\u202f\\u2060-\\u206f\\ufeff"
_PRINTABLE = f"^[^{_UNPRINTABLE}]+$"
_IS_PRINTABLE = re.compile(_PRINTABLE[:-1]).fullmatch
_IS_UUID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}").fullmatch


def _check_printable(value: str) -> str:
    if not (value.isascii() and value.isprintable()) and not _IS_PRINTABLE(value):
        raise ValueError("must be printable characters")
    return value


def lower_uuid(value: str) -> str:
    """The one spelling of an event's id, so that one event is one context."""
    # Nearly every id is in lower case already, and then the pattern is not tried.
    is_lower = len(value) != _UUID_CHARACTERS or value.islower()
    return value if is_lower or not _IS_UUID(value) else value.lower()


def _check_choice(value: object) -> tuple[int, ...]:
    """The chosen options, ascending. Raises ValueError for what is no choice."""
    if type(value) is int and 0 <= value <= MAX_OPTION:
        return (value,)
    chosen = value if isinstance(value, list) else [value]
    if not chosen or not all(type(index) is int and 0 <= index <= MAX_OPTION for index in chosen):
        raise ValueError(
            f"must be the index of an option, 0 to {MAX_OPTION}, or a non-empty list of such indexes"
        )
    if len(set(chosen)) != len(chosen):
        raise ValueError("must not repeat an index")
    return tuple(sorted(chosen))


_INDEX = {"type": "integer", "minimum": 0, "maximum": MAX_OPTION}
Choice = Annotated[
    tuple[int, ...],
    PlainValidator(_check_choice),
    WithJsonSchema(
        {
            "anyOf": [_INDEX, {"type": "array", "items": _INDEX, "minItems": 1, "uniqueItems": True}],
            "description": "The index of the chosen option, or of all that were chosen.",
        }
    ),
]
PrintableText = Annotated[
    str,
    Field(min_length=1, max_length=MAX_TEXT_CHARACTERS, json_schema_extra={"pattern": _PRINTABLE}),
    AfterValidator(_check_printable),
]
VisitorId = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_SIGNED_CHARACTERS,
        json_schema_extra={"pattern": _PRINTABLE},
        description=(
            f"At most {MAX_TEXT_CHARACTERS} characters; where a poll requires signed visitors, a token"
            " that the account's server has signed, and where it requires issued ones, a `visitorId` of"
            " `createVisitor`."
        ),
    ),
    AfterValidator(_check_printable),
]
ContextId = Annotated[PrintableText, AfterValidator(lower_uuid)]
MeasureName = Annotated[
    str,
    Field(min_length=1, max_length=MAX_MEASURE_CHARACTERS, json_schema_extra={"pattern": _PRINTABLE}),
    AfterValidator(_check_printable),
]


class AnswerEntry(Model):
    """What one visitor answers to one measure of one context."""

    measure_name: MeasureName
    context_id: ContextId
    measure_value: Choice
    visitor_id: VisitorId
    session_id: PrintableText | None = None


class ImpressionEntry(Model):
    """That one visitor was shown one measure of one context."""

    measure_name: MeasureName
    context_id: ContextId
    visitor_id: VisitorId
    session_id: PrintableText


class LiveResults(Model):
    """The counts of one measure. `projectId` and `contextId` are there when the results are limited to them.

    `results` has the number of answers by the option's index: all declared options in order, and those that
    were chosen without being declared. `isDeclared` is there with `contextId`: whether that is an event which
    declares this measure. Anybody may begin other measures of an event.
    """

    # Not every field is in every reply.
    model_config = ConfigDict(json_schema_serialization_defaults_required=False)

    account_id: str
    project_id: str | None = None
    context_id: str | None = None
    is_declared: bool | None = None
    measure_name: str
    results: dict[str, int]
    total: int


class ReportOption(Model):
    """One option with its answers; an option that was not declared has its index as its label."""

    measure_value: int
    total: int
    label: str


class ReportImpressions(Model):
    """How often a measure was shown, to how many visitors and in how many sessions."""

    measure_name: str
    total: int
    uniques: int
    sessions: int


class ReportEntry(Model):
    """The answers to one measure of one context. `isDeclared`: the context is an event that declares it."""

    measure_name: str
    is_declared: bool
    program_id: str
    context_id: str
    options: list[ReportOption]
    total: int
    title: str
    impressions: ReportImpressions


class ResponseReport(Model):
    """All answers of a program, by measure and context, in the order in which the first ones came."""

    account_id: str
    project_id: str
    program_id: str
    responses: list[ReportEntry]


class Visitors(StrEnum):
    """Who counts as a visitor of a poll."""

    ANY = "any"
    ISSUED = "issued"
    SIGNED = "signed"


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a context declares; None stands for what it says nothing of.

    Attributes:
        measure_name: as declared, else the camelCased title; one that can be answered.
        options: their labels, in order; without any, none can be chosen.
        opens_ms, closes_ms: answers are taken from the first (inclusive) to the second (exclusive).
        visitors: who is counted; None leaves it to the account.
        watched: how votes come is counted too.
    """

    title: str | None = None
    measure_name: str | None = None
    options: tuple[str, ...] | None = None
    opens_ms: int | None = None
    closes_ms: int | None = None
    allow_change: bool = False
    visitors: Visitors | None = None
    watched: bool = False

    @property
    def choices(self) -> int:
        """How many indexes can be chosen, from 0 on: of options that are declared, or any."""
        return MAX_OPTION + 1 if self.options is None else len(self.options)

    def declares(self, measure: str) -> bool:
        """Whether this is the measure that the context asks; others may be answered besides."""
        return self.measure_name == measure

    def is_open(self, now_ms: int) -> bool:
        """Whether answers are taken."""
        return not self.is_closed(now_ms) and (self.opens_ms is None or now_ms >= self.opens_ms)

    def is_closed(self, now_ms: int) -> bool:
        """Whether no answer will be taken any more."""
        return self.closes_ms is not None and now_ms >= self.closes_ms


NOTHING_DECLARED = Declaration()


def parse_declaration(metadata: object) -> Declaration:
    """What an event's metadata declares; raises nothing."""
    if not isinstance(metadata, dict):
        return NOTHING_DECLARED
    title = _text(metadata.get("title"))
    return Declaration(
        title=title,
        measure_name=_measure(metadata.get("measureName"), title),
        options=_labels(metadata.get("options")),
        opens_ms=_ms(metadata.get("opens"), unreadable=MAX_INTEGER),
        closes_ms=_ms(metadata.get("closes"), unreadable=-MAX_INTEGER),
        allow_change=metadata.get("allowChange") is True,
        visitors=_visitors(metadata.get("visitors")),
        watched=metadata.get("watched") is True,
    )


def is_watched(declared: Declaration, required: Visitors) -> bool:
    """Whether votes are looked at before they are counted, so that native code must not count them.

    Args:
        required: what the account requires where the poll says nothing.
    """
    return declared.watched or (declared.visitors or required) is not Visitors.ANY


def _visitors(value: object) -> Visitors | None:
    if value is None:
        return None
    try:
        return Visitors(value) if isinstance(value, str) else Visitors.SIGNED
    except ValueError:
        return Visitors.SIGNED  # a poll is not left open by a slip


def count_options(totals: Iterable[Sequence[int]], declared: int) -> dict[int, int]:
    """Answers by option: the first `declared` ones and whatever was chosen besides, ascending.

    Args:
        totals: counts by index, of several polls, which are added up.
    """
    counts = dict.fromkeys(range(declared), 0)
    for each in totals:
        for index, count in enumerate(each):
            if count:
                counts[index] = counts.get(index, 0) + count
    return dict(sorted(counts.items()))


def live_results(
    account: str,
    measure: str,
    counts: Mapping[int, int],
    *,
    project_id: str | None = None,
    context_id: str | None = None,
    is_declared: bool = False,
) -> dict[str, object]:
    """The JSON of `LiveResults`; without a context nothing is said of `is_declared`."""
    limits = {
        "projectId": project_id,
        "contextId": context_id,
        "isDeclared": None if context_id is None else is_declared,
    }
    return {
        "accountId": account,
        **{name: value for name, value in limits.items() if value is not None},
        "measureName": measure,
        "results": {str(index): count for index, count in counts.items()},
        "total": sum(counts.values()),
    }


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


def _measure(value: object, title: str | None) -> str | None:
    """The declared name, or one made of the title where that is none that an answer may have."""
    if isinstance(value, str) and value.strip() and len(value) <= MAX_MEASURE_CHARACTERS:
        with suppress(ValueError):
            return _check_printable(value)
    return None if title is None else camel_case(title)[:MAX_MEASURE_CHARACTERS] or UNNAMED


def _ms(value: object, *, unreadable: int) -> int | None:
    """Whole milliseconds, rounded up; None of null, and of the empty text that a form sends for nothing.

    A text that is a number counts, as it does for the overlays, and else one that is a time.

    Args:
        unreadable: what stands for anything else.
    """
    if value is None or value == "":
        return None
    try:
        number = float(value) if isinstance(value, str) else value
    except ValueError:
        return _time_ms(value, unreadable)
    if isinstance(number, bool) or not isinstance(number, int | float):
        return unreadable
    return math.ceil(number) if abs(number) <= MAX_INTEGER else unreadable  # as NaN is


def _time_ms(value: object, unreadable: int) -> int:
    try:
        return to_ms(parse_time(value))
    except ValueError:
        return unreadable


def _labels(value: object) -> tuple[str, ...] | None:
    """The labels of options; None of null, an empty list, and the empty text that a form sends for nothing.

    None can be chosen of what is no list, or a longer one than answers can name.
    """
    if value is None or value in ("", []):
        return None
    if not isinstance(value, list) or len(value) > MAX_OPTION + 1:
        return ()
    return tuple(_label(option, index) for index, option in enumerate(value))


def _label(option: object, index: int) -> str:
    """A text, or a number as it is written; the index of an option that has neither."""
    label = option.get("label") if isinstance(option, dict) else option
    if isinstance(label, str):
        return label
    is_number = isinstance(label, int | float) and not isinstance(label, bool)
    return json.dumps(label).removesuffix(".0") if is_number else str(index)
