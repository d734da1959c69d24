"""Accepts votes and impressions: a batch over REST, one at a time over WebSocket.

Anybody answers a program that it may read. Nothing is counted unless all of a request is good, and what is
answered here is durable. Who answers is known here only: what goes on to the counters is a keyed hash.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Protocol

from pydantic import ConfigDict, Field

from broker._native import pack_answer, pack_impression, pack_session
from broker.auth.issued_visitors import read
from broker.auth.signed_visitors import NotSigned, verify
from broker.domain import permissions
from broker.domain.callers import caller_of
from broker.domain.permission_table import Target
from broker.domain.programs import has_free_contexts
from broker.domain.values import FIRST_FAULT, Id, Model, bounded, limited_by
from broker.errors import (
    BrokerError,
    Conflict,
    FieldFault,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
)
from broker.operations.context import Context
from broker.operations.program_access import is_project
from broker.operations.registry import Effect, Operation, Route, of_resource
from broker.operations.results import Json
from broker.storage.polls import PollProgram, PollRow
from broker.voting.counting.batches import CountKey
from broker.voting.counting.client import PackedEntry
from broker.voting.counting.errors import VotingClosed
from broker.voting.polls.known_polls import OTHER_NAMES, Measure
from broker.voting.polls.visitor_admission import Rules
from broker.voting.rules import (
    MAX_TEXT_CHARACTERS,
    NOTHING_DECLARED,
    AnswerEntry,
    Choice,
    ContextId,
    Declaration,
    ImpressionEntry,
    MeasureName,
    PrintableText,
    VisitorId,
    Visitors,
    is_watched,
)


class AddResponsesParams(Model):
    """Answers and impressions of the audience of one program; one of the two lists must be there."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["responses"]}, {"required": ["impressions"]}]}
    )

    account_id: Id
    project_id: Id = Field(description="The program's project; `undefined` for a program without one.")
    program_id: Id
    responses: Annotated[list[AnswerEntry], FIRST_FAULT, bounded(AnswerEntry)] = Field(
        default_factory=list, json_schema_extra=limited_by("batch_limit_responses")
    )
    impressions: Annotated[list[ImpressionEntry], FIRST_FAULT, bounded(ImpressionEntry)] = Field(
        default_factory=list, json_schema_extra=limited_by("batch_limit_responses")
    )


class _OneEntryParams(Model):
    account_id: Id | None = None
    project_id: Id | None = None
    program_id: Id
    measure_name: MeasureName
    context_id: ContextId
    visitor_id: VisitorId | None = Field(
        default=None,
        description="When absent, the user of the token or the connection. Where a poll requires signed"
        " visitors, a token that the account's server has signed, and where it requires issued ones, a"
        " `visitorId` of `createVisitor`.",
    )
    session_id: PrintableText | None = Field(default=None, description="When absent, the connection.")


class RespondParams(_OneEntryParams):
    """One answer."""

    measure_value: Choice


class ImpressionParams(_OneEntryParams):
    """One impression."""


class Counted(Model):
    """How many entries changed a count, and how many did not."""

    accepted: int
    duplicates: int


class _Place(Protocol):
    """Where the entries belong, as the request says; None is not said."""

    @property
    def account_id(self) -> str | None: ...
    @property
    def project_id(self) -> str | None: ...
    @property
    def program_id(self) -> str: ...


_VERIFIED_AT_ONCE = 50  # some milliseconds, in which this process does nothing else
_SIGNED = "\0"  # before whom a token is of: no name that a caller chooses has it
_ISSUED = "\1"

_Named = tuple[str, AnswerEntry | ImpressionEntry]
"""The path of an entry within the request, up to its fields, and the entry."""


def _admit_responses(context: Context, params: AddResponsesParams) -> None:
    if not params.model_fields_set & {"responses", "impressions"}:
        raise InvalidRequest.of_field("responses", "is required unless impressions is given")
    limit = context.services.settings.batch_limit_responses
    entries = len(params.responses) + len(params.impressions)
    if entries > limit:
        raise PayloadTooLarge.of_field("responses", f"must not have over {limit} entries with impressions")
    _take_tokens(context, entries)


def _admit_one(context: Context, _params: RespondParams | ImpressionParams) -> None:
    _take_tokens(context, 1)


async def _add_responses(context: Context, params: AddResponsesParams) -> Json:
    entries: list[_Named] = [(f"responses[{n}].", entry) for n, entry in enumerate(params.responses)]
    if params.impressions:
        entries += [(f"impressions[{n}].", entry) for n, entry in enumerate(params.impressions)]
    return await _count(context, params, entries)


async def _respond(context: Context, params: RespondParams) -> Json:
    entry = AnswerEntry.model_construct(
        measure_name=params.measure_name,
        context_id=params.context_id,
        measure_value=params.measure_value,
        visitor_id=params.visitor_id or context.principal.subject or context.connection,
    )
    return await _count(context, params, [("", entry)])


async def _impression(context: Context, params: ImpressionParams) -> Json:
    entry = ImpressionEntry.model_construct(
        measure_name=params.measure_name,
        context_id=params.context_id,
        visitor_id=params.visitor_id or context.principal.subject or context.connection,
        session_id=params.session_id or context.connection,
    )
    return await _count(context, params, [("", entry)])


async def _count(context: Context, place: _Place, entries: Sequence[_Named]) -> Json:
    audience, account = context.services.audience, context.principal.account
    # Rights come first, before anything is read for the entries; `invoke` has asked the limits.
    program = await _find_program(context, place)
    if not entries:
        return _counted(0, 0)
    # Check the entries against the polls that their events declare.
    declared = await audience.known.contexts(program.uid, {entry.context_id for _, entry in entries})
    rules = await audience.visitors.rules(account)
    _check(
        entries,
        declared,
        context.services.clock.now_ms(),
        rules.required,
        is_free=has_free_contexts(program.metadata),
    )
    # Find out who votes, and in which polls; a new poll is created here.
    visitors = await _visitors(context, place.program_id, entries, declared, rules)
    wanted = {(entry.measure_name, entry.context_id) for _, entry in entries}
    polls = await audience.known.ensure_rows(
        program.uid, wanted, declared, lambda new: _take_names(context, new)
    )
    if len(polls) < len(wanted):
        raise await _refusal(context, place, program, entries, polls)
    # Pack the votes, and have the counters count them.
    records: list[PackedEntry] = []
    told: list[int] = []  # of each entry, the place of the record that says whether it changed a count
    for (_, entry), visitor in zip(entries, visitors, strict=True):
        told.append(len(records))
        records += _records(entry, visitor, program.key, polls[_measure(entry)], declared)
    if context.votes_before is not None and any(record.allow_change for record in records):
        await context.votes_before()  # the last one that is counted stands
    key = None if context.key is None else CountKey.of(account, context.key, program.uid)
    try:
        try:
            changed = await audience.counters.submit(records, key)
        except VotingClosed:
            # The poll has ended, or its event has been changed since it had.
            if await audience.final.seal({poll.uid for poll in polls.values()}):
                raise
            changed = await audience.counters.submit(records, key)
    except NotFound:
        audience.known.forget(account, place.program_id, program.uid, wanted)
        raise _no_program(place.program_id) from None
    # Record what changed a count, and ask for new results to be published.
    answers, accepted = 0, 0
    watched: list[tuple[int, str]] = []
    for (_, entry), visitor, index in zip(entries, visitors, told, strict=True):
        if changed[index]:
            accepted += 1
            if isinstance(entry, AnswerEntry):
                answers += 1
                if is_watched(declared.get(entry.context_id, NOTHING_DECLARED), rules.required):
                    watched.append((polls[_measure(entry)].uid, visitor))
    if accepted:
        _watch(context, program.key, watched)
        _record(context, place.program_id, program.project_id, answers, accepted - answers)
        await audience.news.tell(account, place.program_id)
    return _counted(accepted, len(entries) - accepted)


def _counted(accepted: int, duplicates: int) -> Json:
    """`Counted`, in a third of the time of its model."""
    return Json(b'{"accepted":%d,"duplicates":%d}' % (accepted, duplicates))


def _take_tokens(context: Context, entries: int) -> None:
    """An entry takes one token, and so does a request without any."""
    audience, tokens = context.services.audience, max(1, entries)
    if context.connection:
        audience.per_connection.take(context.connection, tokens)
    if context.address:
        audience.per_address.take(f"{context.principal.account}/{caller_of(context.address)}", tokens)


def _take_names(context: Context, names: int) -> None:
    """A measure that no event declares takes a token when it is answered for the first time."""
    if context.address:
        caller = f"{context.principal.account}/{caller_of(context.address)}"
        context.services.audience.names_per_address.take(caller, names)


async def _find_program(context: Context, place: _Place) -> PollProgram:
    """The program, where the caller may answer and the request names its account and project."""
    account, program_id = context.principal.account, place.program_id
    program = await context.services.audience.known.find_program(account, program_id)
    target = Target.UNKNOWN
    if program is not None:
        target = permissions.access_target(context.principal, program.access, program.project_id)
    missing = f"there is no program {program_id}"
    permissions.require(context.rule, context.principal, target, missing, permissions.not_public(program_id))
    assert program is not None, "no rule allows anything on what is not there"
    if place.account_id not in (None, account) or not is_project(place.project_id, program.project_id):
        raise _no_program(program_id)
    return program


def _check(
    entries: Sequence[_Named],
    declared: Mapping[str, Declaration],
    now_ms: int,
    required: Visitors,
    *,
    is_free: bool,
) -> None:
    """Raise InvalidRequest for what no event asks, and Conflict for answers outside of the time for them."""
    faults: list[FieldFault] = []
    late: list[FieldFault] = []
    for path, entry in entries:
        context = declared.get(entry.context_id)
        visitors = (context or NOTHING_DECLARED).visitors or required
        if len(entry.visitor_id) > MAX_TEXT_CHARACTERS and visitors is not Visitors.SIGNED:
            limit = f"must have at most {MAX_TEXT_CHARACTERS} characters"
            faults.append(FieldFault(f"{path}visitorId", limit))
        if context is None:
            if not is_free:
                faults.append(FieldFault(f"{path}contextId", "must be an event of the program"))
            continue
        if isinstance(entry, ImpressionEntry):
            continue
        if entry.measure_value[-1] >= context.choices:
            faults.append(FieldFault(f"{path}measureValue", _no_option(context.choices)))
        elif not context.is_open(now_ms):
            when = "is closed" if context.is_closed(now_ms) else "is not open yet"
            late.append(FieldFault(f"{path}contextId", f"voting {when}"))
    for found, kind in ((faults, InvalidRequest), (late, Conflict)):
        if found:
            raise kind.of_faults(found)


def _no_option(choices: int) -> str:
    if not choices:
        return "cannot be chosen: the event's options are no list, or one of too many"
    return f"must be an option of the event, 0 to {choices - 1}"


async def _visitors(
    context: Context,
    program_id: str,
    entries: Sequence[_Named],
    declared: Mapping[str, Declaration],
    rules: Rules,
) -> list[str]:
    """Who is counted for each entry. Raises InvalidRequest at the first that may not be."""
    account, now_ms = context.principal.account, context.services.clock.now_ms()
    visitors: list[str] = []
    verified: dict[tuple[Visitors, str], str] = {}
    otherwise, is_remembered = rules.required, True
    for path, entry in entries:
        required = declared.get(entry.context_id, NOTHING_DECLARED).visitors or otherwise
        token = entry.visitor_id
        if required is Visitors.ANY:
            visitors.append(token)
            continue
        while (required, token) not in verified:
            try:
                if required is Visitors.SIGNED:
                    visitor = _SIGNED + verify(token, rules.keys, account, program_id, now_ms)
                else:
                    visitor = _ISSUED + read(token, rules.secret, account, now_ms).hex()
            except NotSigned as error:
                if not is_remembered:
                    raise InvalidRequest.of_field(f"{path}visitorId", str(error)) from None
                # It may be of a key or a secret that is younger than what this process remembers.
                rules, is_remembered = await context.services.audience.visitors.rules_now(account), False
                continue
            verified[required, token] = visitor
            if len(verified) % _VERIFIED_AT_ONCE == 0:
                await asyncio.sleep(0)
        visitors.append(verified[required, token])
    return visitors


async def _refusal(
    context: Context,
    place: _Place,
    program: PollProgram,
    entries: Sequence[_Named],
    polls: Mapping[Measure, PollRow],
) -> BrokerError:
    """Why there is no poll for some entry: its context has as many as it may, or the program is gone."""
    known, account = context.services.audience.known, context.principal.account
    known.forget(account, place.program_id, program.uid, ())
    now = await known.find_program(account, place.program_id)
    if now is None or now.uid != program.uid:
        return _no_program(place.program_id)
    path = next(path for path, entry in entries if _measure(entry) not in polls)
    message = f"the context has reached its limit of {OTHER_NAMES} measures besides the declared one"
    if has_free_contexts(program.metadata):
        most = context.services.settings.program_polls
        message += f", or all contexts that are not events have together reached theirs of {most}"
    return PayloadTooLarge.of_field(f"{path}measureName", message)


def _records(
    entry: AnswerEntry | ImpressionEntry,
    visitor: str,
    key: bytes,
    poll: PollRow,
    declared: Mapping[str, Declaration],
) -> list[PackedEntry]:
    """The records of an entry; the first one says whether it changed a count."""
    may_change = declared.get(entry.context_id, NOTHING_DECLARED).allow_change
    if isinstance(entry, AnswerEntry):
        return [_record_of(poll, may_change, pack_answer(key, poll.uid, visitor, entry.measure_value))]
    return [
        _record_of(poll, may_change, pack_impression(key, poll.uid, visitor)),
        _record_of(poll, may_change, pack_session(key, poll.uid, entry.session_id)),
    ]


def _record_of(poll: PollRow, may_change: bool, record: bytes) -> PackedEntry:
    return PackedEntry(poll.uid, int.from_bytes(record[-8:], "little") % poll.shards, may_change, record)


def _measure(entry: AnswerEntry | ImpressionEntry) -> Measure:
    return entry.measure_name, entry.context_id


def _watch(context: Context, key: bytes, votes: Sequence[tuple[int, str]]) -> None:
    """Count how votes of watched polls came, by poll and visitor."""
    if votes:
        audience = context.services.audience
        audience.patterns.note(key, audience.visitors.network_of(context.address), votes)


def _record(
    context: Context,
    program_id: str,
    project_id: str | None,
    answers: int,
    impressions: int,
) -> None:
    """Count for the statistics."""
    recorder = context.services.recorder
    if recorder is not None:
        account = context.principal.account
        recorder.count_responses(account, program_id, project_id, responses=answers, impressions=impressions)


def _no_program(program_id: str) -> NotFound:
    return NotFound(f"there is no program {program_id}")


_CONTEXT = "0198b2c4-7a10-7c3e-9d1f-5b6a7c8d9e0f"
_ANSWER = {"measureName": "whoWins", "contextId": _CONTEXT, "measureValue": 1, "visitorId": "visitor-1"}
_SHOWN = {"measureName": "whoWins", "contextId": _CONTEXT, "visitorId": "visitor-1", "sessionId": "session-1"}

_INGEST = (
    "A visitor counts once for each measure of a context: its first answer stands, or with `allowChange` in"
    " the event's metadata its last one. `accepted` entries changed a count and are durable, the others are"
    " `duplicates`. With `visitors: signed` in the event's metadata `visitorId` is a token that the"
    " account's server has signed, and its `sub` is the visitor; with `issued` it is one of"
    " `createVisitor`. One entry that is wrong, or an answer that comes before the event's `opens` or after"
    " its `closes` (409), refuses the whole request. `contextId` is an event of the program, or any text"
    " where the program's metadata has `freeContexts: true`. All entries of one request are"
    " {batch_limit_responses} at most. One address sends {responses_rate_per_address} entries a second (in a"
    " burst {responses_burst_per_address}) and begins {responses_names_rate_per_address} measures a second"
    " that no event declares (in a burst {responses_names_burst_per_address}), one"
    " connection {responses_rate_per_connection} (in a burst"
    " {responses_burst_per_connection}); 0 has no limit. Over WebSocket `respond` and `impression` take one"
    " entry each. The measure that an event declares can always be answered; a context takes 20 others, and"
    " contexts that are no events have {program_polls} together (413)."
)

OPERATIONS = of_resource(
    "Responses",
    Operation(
        name="addResponses",
        summary="Submit votes and impressions",
        handler=_add_responses,
        result=Counted,
        admit=_admit_responses,
        own_effect=Effect.KEYED,
        is_resumable=True,
        route=Route(
            "POST",
            "/responses/{accountId}/{projectId}/{programId}",
            status=202,
            description=_INGEST,
        ),
        example={
            "accountId": "demo",
            "projectId": "football",
            "programId": "final-2026",
            "responses": [_ANSWER],
            "impressions": [_SHOWN],
        },
    ),
    Operation(
        name="respond",
        summary="Submit one vote",
        handler=_respond,
        result=Counted,
        admit=_admit_one,
        own_effect=Effect.KEYED,
        is_resumable=True,
        route=None,
        example={"programId": "final-2026"} | _ANSWER,
    ),
    Operation(
        name="impression",
        summary="Record that a poll was shown",
        handler=_impression,
        result=Counted,
        admit=_admit_one,
        own_effect=Effect.KEYED,
        is_resumable=True,
        route=None,
        example={"programId": "final-2026"} | _SHOWN,
    ),
)
