"""Reads the results of polls: live results for everyone, and the report of a program.

Live results are open: whoever knows the name of a response may read its counts. They are read by a whole
audience at a time, so a process looks at most twice a second for each of them, and caches in front of it may
keep them for seconds.
"""

from collections.abc import Mapping
from contextlib import suppress

import orjson

from broker.domain import permissions
from broker.domain.permission_table import Target
from broker.domain.values import Id, Model
from broker.errors import NotFound, Unavailable
from broker.operations.context import Context
from broker.operations.etags import etag_of
from broker.operations.program_access import WITHOUT_PROJECT, is_project
from broker.operations.registry import Operation, Route, of_resource
from broker.operations.results import Json
from broker.storage.polls import PollCount
from broker.voting.polls.audience import LiveReply
from broker.voting.polls.integrity import IntegrityReport, examine_votes
from broker.voting.rules import (
    NOTHING_DECLARED,
    ContextId,
    Declaration,
    LiveResults,
    MeasureName,
    ReportEntry,
    ReportImpressions,
    ReportOption,
    ResponseReport,
    count_options,
    live_results,
    parse_declaration,
)

_RUNNING = "public, max-age=1, s-maxage=5"
_CLOSED = "public, max-age=60, s-maxage=60"


class ResponseReportParams(Model):
    """Names a program, as its project has it."""

    account_id: Id
    project_id: Id
    program_id: Id


class ResultsParams(Model):
    """Which results: of all programs and contexts of the account unless limited."""

    account_id: Id
    response_name: MeasureName
    project_id: Id | None = None
    program_id: Id | None = None
    context_id: ContextId | None = None


async def _get_report(context: Context, params: ResponseReportParams) -> ResponseReport:
    counts = await _reported(context, params)
    return ResponseReport.model_construct(
        **dict(params),
        responses=[_entry(count) for count in counts if any(count.totals) or count.impressions],
    )


async def _get_integrity(context: Context, params: ResponseReportParams) -> IntegrityReport:
    counts = [count for count in await _reported(context, params) if any(count.totals)]
    patterns = context.services.audience.patterns
    minutes, networks = await patterns.stored.read([count.uid for count in counts])
    required = (await context.services.audience.visitors.rules(params.account_id)).required
    return IntegrityReport.model_construct(
        **dict(params),
        polls=[
            examine_votes(
                count,
                _declared(count),
                required,
                [row for row in minutes if row.poll == count.uid],
                [row for row in networks if row.poll == count.uid],
            )
            for count in counts
        ],
    )


async def _reported(context: Context, params: ResponseReportParams) -> list[PollCount]:
    """What the program's polls have counted, for those who may read its project."""
    audience, account = context.services.audience, context.principal.account
    missing = f"there is no program {params.program_id}"
    program = await audience.known.find_program(account, params.program_id)
    target = Target.UNKNOWN
    if program is not None:
        target = permissions.belonging(context.principal, program.project_id)
    permissions.require(context.rule, context.principal, target, missing)
    assert program is not None, "no rule allows anything on what is not there"
    if params.account_id != account or not is_project(params.project_id, program.project_id):
        raise NotFound(missing)
    return await audience.polls.count(account, None, program_id=params.program_id)


def _entry(count: PollCount) -> ReportEntry:
    declared = _declared(count)
    labels = dict(enumerate(declared.options or ()))
    options = count_options([count.totals], len(labels))
    return ReportEntry.model_construct(
        measure_name=count.measure,
        is_declared=declared.declares(count.measure),
        program_id=count.program_id,
        context_id=count.context,
        options=[
            ReportOption.model_construct(
                measure_value=index, total=total, label=labels.get(index, str(index))
            )
            for index, total in options.items()
        ],
        total=sum(options.values()),
        title=declared.title or count.measure,
        impressions=ReportImpressions.model_construct(
            measure_name=count.measure,
            total=count.impressions,
            uniques=count.visitors,
            sessions=count.sessions,
        ),
    )


async def _get_results(context: Context, params: ResultsParams) -> Json:
    audience, account = context.services.audience, context.principal.account
    if params.account_id != account:
        raise NotFound(f"there is no account {params.account_id} here")
    key = (account, params.response_name, params.project_id, params.program_id, params.context_id)
    live = await audience.results.load(key, lambda: _read_in_turn(context, params))
    return Json(live.body, live.headers)


async def _read_in_turn(context: Context, params: ResultsParams) -> LiveReply:
    """Read results that are not cached, in a list's turn; requests for the same wait for this one."""
    async with context.services.lists.held(context.principal, context.address):
        return await _read_results(context, params)


async def _read_results(context: Context, params: ResultsParams) -> LiveReply:
    counts = await _counts(context, params)
    declared = [_declared(count) for count in counts]
    is_final = False
    if not counts:
        params = await _placed(context, params)
        declared = list((await _asked(context, params)).values())
    final = context.services.audience.final
    if declared and all(final.has_ended(each) for each in declared):
        with suppress(Unavailable):
            counts = await _sealed(context, params, counts)
            declared = [_declared(count) for count in counts]
            is_final = all(count.sealed and final.has_ended(_declared(count)) for count in counts)
    options = max((len(each.options or ()) for each in declared), default=0)
    body = orjson.dumps(
        live_results(
            context.principal.account,
            params.response_name,
            count_options((count.totals for count in counts), options),
            project_id=params.project_id,
            context_id=params.context_id,
            is_declared=bool(declared) and all(each.declares(params.response_name) for each in declared),
        )
    )
    return LiveReply(body, {"ETag": etag_of(body), "Cache-Control": _CLOSED if is_final else _RUNNING})


async def _counts(context: Context, params: ResultsParams) -> list[PollCount]:
    return [
        count
        for count in await context.services.audience.polls.count(
            context.principal.account,
            params.response_name,
            project_id=None if params.project_id in WITHOUT_PROJECT else params.project_id,
            program_id=params.program_id,
            context_id=params.context_id,
        )
        if is_project(params.project_id, count.project_id)
    ]


async def _sealed(context: Context, params: ResultsParams, counts: list[PollCount]) -> list[PollCount]:
    """The counts of polls that have ended, once nothing is counted in them any more. Raises Unavailable."""
    audience = context.services.audience
    polls = {count.uid for count in counts if not count.sealed}
    if counts and not polls:
        return counts
    if not counts:
        # Nobody has answered, so there is no poll yet that could be sealed.
        assert params.program_id is not None, "what is asked is known of one program only"
        program = await audience.known.find_program(context.principal.account, params.program_id)
        asked = await _asked(context, params)
        if program is not None:
            wanted = [(params.response_name, id_) for id_ in asked]
            rows = await audience.known.ensure_rows(program.uid, wanted, asked, lambda _new: None)
            polls = {row.uid for row in rows.values()}
    await audience.final.seal(polls)
    return await _counts(context, params)


async def _placed(context: Context, params: ResultsParams) -> ResultsParams:
    """The same with the program of the context, where the context alone is named."""
    if params.context_id is None or params.program_id is not None:
        return params
    polls, account = context.services.audience.polls, context.principal.account
    program_id = await polls.find_program_of(account, params.context_id)
    return params.model_copy(update={"program_id": program_id})


async def _asked(context: Context, params: ResultsParams) -> Mapping[str, Declaration]:
    """What is asked that nobody has answered yet: known only by the context, which is an event.

    Nothing is found by the name alone: that would read all events of a program, for anybody who asks.
    """
    known = context.services.audience.known
    if params.program_id is None or params.context_id is None:
        return {}
    program = await known.find_program(context.principal.account, params.program_id)
    if program is None or not is_project(params.project_id, program.project_id):
        return {}
    found = await known.contexts(program.uid, [params.context_id])
    return {id_: each for id_, each in found.items() if each.measure_name == params.response_name}


def _declared(count: PollCount) -> Declaration:
    return NOTHING_DECLARED if count.event is None else parse_declaration(orjson.loads(count.event))


OPERATIONS = of_resource(
    "Responses",
    Operation(
        name="getResponseReport",
        summary="Get the response report of a program",
        handler=_get_report,
        is_list=True,
        route=Route(
            "GET",
            "/responses/{accountId}/{projectId}/{programId}/report",
            description="One entry for each measure of a context that has votes or impressions, oldest first,"
            " with the title and the labels of the event's metadata. `isDeclared` tells the measure that the"
            " event declares from others, which anybody may begin. `projectId` is `undefined` for a"
            " program without one.",
        ),
        example={"accountId": "demo", "projectId": "football", "programId": "final-2026"},
    ),
    Operation(
        name="getResponseIntegrity",
        summary="Get what looks wrong in the votes of a program",
        handler=_get_integrity,
        is_list=True,
        route=Route(
            "GET",
            "/responses/{accountId}/{projectId}/{programId}/integrity",
            description="How the votes of each poll came: by minute of the last day, by network, and how"
            " many names came in rows. Only polls that are `watched`, or require issued or signed visitors,"
            " are looked at; the others have no numbers. Networks have no names, and those with fewer than"
            " 10 votes are told together. The numbers may lack votes of the last seconds, and those that"
            " a killed process had not written; results never do. `projectId` is `undefined` for a"
            " program without one.",
        ),
        example={"accountId": "demo", "projectId": "football", "programId": "final-2026"},
    ),
    Operation(
        name="getResponseResults",
        summary="Get live results",
        result=LiveResults,
        handler=_get_results,
        route=Route(
            "GET",
            "/responses/{accountId}/{responseName}/results",
            description="The votes for a measure, summed over all contexts unless limited; at most one second"
            " behind. Caches may keep the response for seconds, and for a minute once the result is"
            " final: when all contexts have closed and every vote that arrived in time is counted."
            " Without votes, the options that an event declares have zeros where `contextId` names the"
            " event; otherwise `results` is `{}`. So it is for a name, a program, a project or a context"
            " that is not there: they are no 404, because anybody could tell private programs by it. The"
            " channel `responses:<programId>` sends changed results of a program as `results`.",
        ),
        example={"accountId": "demo", "responseName": "whoWins", "projectId": "football"},
        has_etag=True,
    ),
)
