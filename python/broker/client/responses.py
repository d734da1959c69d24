"""Audience answers: their types, and the calls on them over HTTP.

A visitor counts once for each measure of a context, so an answer may be sent again without harm: what was
counted comes back as a duplicate. An impression counts each time that it is sent, but for a repeat under the
same idempotency key.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from broker.client import query
from broker.client.engine import Call, Engine
from broker.client.models import _Reading
from broker.client.retry import Safety

CHANNEL = "responses:"
"""What stands before a program's id in the name of the channel of its live results."""

_NO_PROJECT = "undefined"


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


@dataclass(frozen=True, slots=True)
class Counted:
    """How many entries changed a count, and how many were there already; all of them are durable."""

    accepted: int
    duplicates: int

    @classmethod
    def parse(cls, raw: Any) -> "Counted":
        """Read the wire's object."""
        with _Reading("count of answers"):
            return cls(raw["accepted"], raw["duplicates"])


@dataclass(frozen=True, slots=True)
class LiveResults:
    """The counts of a measure.

    Attributes:
        results: answers by the option's index, all declared options in order.
        total: of all options; who chose several counts for each.
        project_id, context_id: what the counts are limited to; None where they are not.
    """

    account_id: str
    measure_name: str
    results: dict[int, int]
    total: int
    project_id: str | None = None
    context_id: str | None = None

    @classmethod
    def parse(cls, raw: Any) -> "LiveResults":
        """Read the wire's object."""
        with _Reading("results"):
            return cls(
                account_id=raw["accountId"],
                measure_name=raw["measureName"],
                results={int(index): count for index, count in raw["results"].items()},
                total=raw["total"],
                project_id=raw.get("projectId"),
                context_id=raw.get("contextId"),
            )


@dataclass(frozen=True, slots=True)
class ReportOption:
    """One option with its answers; one that was not declared has its index as its label."""

    measure_value: int
    total: int
    label: str


@dataclass(frozen=True, slots=True)
class ReportImpressions:
    """How often a measure was shown, to how many visitors and in how many sessions."""

    total: int
    uniques: int
    sessions: int


@dataclass(frozen=True, slots=True)
class ReportEntry:
    """The answers to one measure of one context."""

    measure_name: str
    program_id: str
    context_id: str
    title: str
    options: tuple[ReportOption, ...]
    total: int
    impressions: ReportImpressions

    @classmethod
    def parse(cls, raw: Any) -> "ReportEntry":
        """Read the wire's object."""
        with _Reading("entry of a report"):
            shown = raw["impressions"]
            return cls(
                measure_name=raw["measureName"],
                program_id=raw["programId"],
                context_id=raw["contextId"],
                title=raw["title"],
                options=tuple(
                    ReportOption(each["measureValue"], each["total"], each["label"])
                    for each in raw["options"]
                ),
                total=raw["total"],
                impressions=ReportImpressions(shown["total"], shown["uniques"], shown["sessions"]),
            )


class ResponseCalls:
    """What can be asked over HTTP about the audience's answers."""

    _engine: Engine
    _account: str

    async def add_responses(
        self,
        program_id: str,
        responses: Iterable[Answer] = (),
        impressions: Iterable[Impression] = (),
        *,
        project_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> Counted:
        """Count up to 1,000 answers and impressions, all or none; returns once they are durable.

        It is tried again also when the outcome of a try is unknown. Answers count once, and what a lost try
        counted comes back as duplicates. Each impression counts, so a batch with some goes with an
        idempotency key, under which the broker counts it once.

        Args:
            idempotency_key: the same for a batch that another run of the program sends again.
            project_id: the program's project; None for a program without one.

        Raises:
            NotFound: no such program in that project, or none that the caller may read.
            Conflict: an answer comes before its event opens or after it has closed.
            InvalidRequest: an entry is wrong, `fields` says which; nothing was counted.
        """
        shown = [impression.body() for impression in impressions]
        body = {"responses": [answer.body() for answer in responses], "impressions": shown}
        target = query.path("responses", self._account, project_id or _NO_PROJECT, program_id)
        safety = Safety.KEYED if shown or idempotency_key else Safety.REPEATABLE
        call = Call("POST", target, Counted.parse, body=body, own_safety=safety, key=idempotency_key)
        return await self._engine.send(call)

    async def response_results(
        self,
        measure_name: str,
        *,
        program_id: str | None = None,
        context_id: str | None = None,
        project_id: str | None = None,
    ) -> LiveResults:
        """Live results, for everybody: of all programs and contexts of the account unless limited.

        They are at most a second behind, caches on the way may answer what was up to five seconds ago, and
        a name that nobody has answered has zeros.
        """
        limits = {"programId": program_id, "contextId": context_id, "projectId": project_id}
        target = query.path("responses", self._account, measure_name, "results")
        return await self._engine.send(Call("GET", target, LiveResults.parse, query=limits))

    async def response_report(
        self, program_id: str, *, project_id: str | None = None
    ) -> tuple[ReportEntry, ...]:
        """All answers to a program, with titles and labels, an entry a measure and context, the oldest first.

        Args:
            project_id: the program's project; None for a program without one.

        Raises:
            Unauthenticated: it needs a log-in.
            NotFound: no such program in that project, or the caller may not read the project.
        """
        target = query.path("responses", self._account, project_id or _NO_PROJECT, program_id, "report")
        return await self._engine.send(Call("GET", target, _entries))


def choice(value: int | Sequence[int]) -> int | list[int]:
    """The chosen option or options as the wire has them."""
    return value if isinstance(value, int) else list(value)


def parse_results(raw: Any) -> tuple[LiveResults, ...]:
    """What a `results` notification carries."""
    with _Reading("results"):
        return tuple(map(LiveResults.parse, raw["results"]))


def _entries(raw: Any) -> tuple[ReportEntry, ...]:
    with _Reading("report"):
        return tuple(map(ReportEntry.parse, raw["responses"]))
