"""Votes, called answers in the SDK, and the results of polls."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from broker.client.wire import Model


@dataclass(frozen=True, slots=True)
class Answer:
    """What one visitor answers: the index of the chosen option, or of all that were chosen.

    Attributes:
        measure_name: as the event declares it, or its camelCased title.
        context_id: the event that asks.
    """

    measure_name: str
    context_id: str
    measure_value: int | Sequence[int]
    visitor_id: str
    session_id: str | None = None

    def body(self) -> dict[str, Any]:
        """Its fields under their wire names, absent ones left out."""
        fields = {
            "measureName": self.measure_name,
            "contextId": self.context_id,
            "measureValue": choice(self.measure_value),
            "visitorId": self.visitor_id,
            "sessionId": self.session_id,
        }
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Impression:
    """That one visitor was shown a measure."""

    measure_name: str
    context_id: str
    visitor_id: str
    session_id: str

    def body(self) -> dict[str, Any]:
        """Its fields under their wire names."""
        return {
            "measureName": self.measure_name,
            "contextId": self.context_id,
            "visitorId": self.visitor_id,
            "sessionId": self.session_id,
        }


class Counted(Model, frozen=True):
    """How many entries changed a count, and how many were there already; all of them are durable."""

    accepted: int
    duplicates: int


class LiveResults(Model, frozen=True):
    """The counts of a measure.

    Attributes:
        results: answers by the option's index, all declared options in order.
        total: of all options; who chose several counts for each.
        project_id, context_id: what the counts are limited to; None where they are not.
        is_declared: whether the context is an event that declares this measure; None without a context.
    """

    account_id: str
    measure_name: str
    results: dict[int, int]
    total: int
    project_id: str | None = None
    context_id: str | None = None
    is_declared: bool | None = None


class Visitor(Model, frozen=True):
    """A visitor that the broker has handed out, and until when its id is accepted (ms since 1970)."""

    visitor_id: str
    expires: int


class IntegrityMinute(Model, frozen=True):
    """Votes in the minute that begins at `timestamp` (ms), and those whose names came in rows."""

    timestamp: int
    votes: int
    in_row: int


class IntegrityEntry(Model, frozen=True):
    """How the votes of one measure in one context came.

    Attributes:
        visitors: who is counted: `any`, `issued` or `signed`.
        is_watched: whether votes are looked at; without it there are no numbers.
        networks: votes of the largest networks; those of all others are `other_votes`.
        findings: sentences on what is unusual; none of them proves anything.
        is_declared: whether the context is an event that declares this measure.
    """

    measure_name: str
    context_id: str
    title: str
    visitors: str
    is_watched: bool
    votes: int
    minutes: tuple[IntegrityMinute, ...]
    networks: tuple[int, ...]
    other_votes: int
    in_row: int
    findings: tuple[str, ...]
    is_declared: bool


class ReportOption(Model, frozen=True):
    """One option with its answers; one that was not declared has its index as its label."""

    measure_value: int
    total: int
    label: str


class ReportImpressions(Model, frozen=True):
    """How often a measure was shown, to how many visitors and in how many sessions."""

    total: int
    uniques: int
    sessions: int


class ReportEntry(Model, frozen=True):
    """The answers to one measure of one context.

    Attributes:
        is_declared: whether the context is an event that declares this measure; anybody may begin others.
    """

    measure_name: str
    program_id: str
    context_id: str
    title: str
    options: tuple[ReportOption, ...]
    total: int
    impressions: ReportImpressions
    is_declared: bool


def choice(value: int | Sequence[int]) -> int | list[int]:
    """The chosen option or options as the wire has them."""
    return value if isinstance(value, int) else list(value)
