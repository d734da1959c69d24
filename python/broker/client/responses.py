"""The calls on audience answers, reached as `client.responses`.

A visitor counts once for each measure of a context, so an answer may be sent again without harm: what was
counted comes back as a duplicate. An impression counts each time that it is sent, except a repeat under the
same idempotency key.
"""

import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable

from broker.client import query
from broker.client.answers import (
    Answer,
    Counted,
    Impression,
    IntegrityEntry,
    LiveResults,
    ReportEntry,
    Visitor,
)
from broker.client.channels import Channels
from broker.client.engine import Call, Engine, Group
from broker.client.errors import ProgramDeleted, Unsubscribed
from broker.client.retry import Safety
from broker.client.wire import Model

_NO_PROJECT = "undefined"
_RENEW_MS = 15 * 86_400_000  # half of what a visitor lasts


class Responses(Group):
    """Answers of the audience."""

    def __init__(self, engine: Engine, account: str, channels: Channels) -> None:
        super().__init__(engine)
        self._account = account
        self._channels = channels

    async def add(
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
            Conflict: an answer comes before its event opens or after it has closed. What a lost try counted
                stays counted; under an idempotency key a try that was completed is answered again.
            InvalidRequest: an entry is wrong, `fields` says which; nothing was counted.
        """
        shown = [impression.body() for impression in impressions]
        body = {"responses": [answer.body() for answer in responses], "impressions": shown}
        target = query.path("responses", self._account, project_id or _NO_PROJECT, program_id)
        safety = Safety.KEYED if shown or idempotency_key else Safety.REPEATABLE
        call = Call("POST", target, Counted, body=body, own_safety=safety, key=idempotency_key)
        return await self._engine.send(call)

    async def get_results(
        self,
        measure_name: str,
        *,
        program_id: str | None = None,
        context_id: str | None = None,
        project_id: str | None = None,
    ) -> LiveResults:
        """Live results, for everybody: of all programs and contexts of the account unless limited.

        They are at most a second behind, and caches on the way may answer what was up to five seconds ago.
        Before the first answer the options have zeros where `context_id` names the event that declares them;
        otherwise, and for what is not there, `results` is empty.
        """
        limits = {"programId": program_id, "contextId": context_id, "projectId": project_id}
        target = query.path("responses", self._account, measure_name, "results")
        return await self._get(target, LiveResults, limits)

    async def get_report(self, program_id: str, *, project_id: str | None = None) -> tuple[ReportEntry, ...]:
        """All answers to a program, with titles and labels, an entry a measure and context, the oldest first.

        Args:
            project_id: the program's project; None for a program without one.

        Raises:
            Unauthenticated: it needs a log-in.
            NotFound: no such program in that project, or the caller may not read the project.
        """
        target = query.path("responses", self._account, project_id or _NO_PROJECT, program_id, "report")
        return (await self._get(target, _Report)).responses

    async def get_integrity(
        self, program_id: str, *, project_id: str | None = None
    ) -> tuple[IntegrityEntry, ...]:
        """What looks wrong in the votes of a program, an entry a measure and context, the oldest first.

        Args:
            project_id: the program's project; None for a program without one.

        Raises:
            Unauthenticated: it needs a log-in.
            NotFound: no such program in that project, or the caller may not read the project.
        """
        target = query.path("responses", self._account, project_id or _NO_PROJECT, program_id, "integrity")
        return (await self._get(target, _Integrity)).polls

    async def get_visitor(self, known: Visitor | None = None) -> Visitor:
        """A visitor for polls that require issued ones: `known` renewed in time, or a new one.

        Keep it where votes of the same person come from, and pass it again before each vote.

        Raises:
            SlowDown: too many new visitors come from this address or network.
        """
        if known is not None and known.expires - time.time() * 1_000 > _RENEW_MS:
            return known
        body = {} if known is None else {"visitorId": known.visitor_id}
        target = query.path("responses", "visitor")
        return await self._engine.send(Call("POST", target, Visitor, body=body, own_safety=Safety.REPEATABLE))

    async def follow(
        self, program_id: str, *, followed: Callable[[], Awaitable[None]] | None = None
    ) -> AsyncGenerator[LiveResults, None]:
        """A program's live results as they change, each measure of a context at most once a second.

        What has not changed since is not told. A lost connection raises ConnectionLost; follow again.

        Args:
            followed: as for `channels.follow`; the place to read the report. Results may be a second behind.

        Raises:
            NotFound, Unauthenticated: no such program, or none that the caller may read.
            ProgramDeleted, Unsubscribed: while iterating, that has become so.
        """
        async with contextlib.aclosing(
            self._channels.follow(f"responses:{program_id}", followed=followed)
        ) as notifications:
            async for told in notifications:
                match told.method:
                    case "results":
                        for result in _Results.parse(told.params).results:
                            yield result
                    case "programDeleted":
                        raise ProgramDeleted(program_id)
                    case "unsubscribed":
                        raise Unsubscribed(program_id, str(told.params.get("reason", "")))


class _Results(Model, frozen=True):
    results: tuple[LiveResults, ...]


class _Integrity(Model, frozen=True):
    polls: tuple[IntegrityEntry, ...]


class _Report(Model, frozen=True):
    responses: tuple[ReportEntry, ...]
