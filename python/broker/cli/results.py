"""`broker results`."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, TypeVar

import typer

from broker.cli.output import write_json, write_line, write_notice
from broker.cli.remote import JsonOption, ProgramId, Remote, find_url, noticed
from broker.client import (
    AsyncClient,
    Backoff,
    ConnectionFailed,
    IntegrityEntry,
    ReportEntry,
    ServerError,
)

_Entry = TypeVar("_Entry", ReportEntry, IntegrityEntry)

_STABLE_S = 10.0  # after so long a lost connection is a new trouble, not the old one
_BAR = 20  # characters of a bar that is all answers


def results(
    program: ProgramId,
    watch: Annotated[
        bool, typer.Option("--watch", help="Continue, and write a poll again when its results change.")
    ] = False,
    integrity: Annotated[
        bool, typer.Option("--integrity", help="Show what looks wrong in the votes instead.")
    ] = False,
    account: Annotated[
        str | None, typer.Option(help="Account, if the host of the URL does not name it.")
    ] = None,
    *,
    remote: Remote,
    json: JsonOption = False,
) -> None:
    """Show the results of a program's polls, of measures that no event declares last. Requires a log-in."""
    if integrity and watch:
        raise typer.BadParameter("give one of --integrity and --watch")

    async def run() -> None:
        async with remote.open_client(account) as client:
            async with noticed(find_url(remote.url)):
                project_id = (await client.programs.get(program)).project_id
                if integrity:
                    polls = await client.responses.get_integrity(program, project_id=project_id)
                    for poll in _declared_first(polls):
                        write_json(poll) if json else write_line("\n".join(render_integrity(poll)))
                    return
                board = _Board(client, program, project_id, json=json)
                await board.show()
            if watch:
                await _watch(client, program, board)

    asyncio.run(run())


class _Board:
    """Writes the entries of a program's report that it has not written as they are."""

    def __init__(self, client: AsyncClient, program_id: str, project_id: str | None, *, json: bool) -> None:
        self._client = client
        self._program_id = program_id
        self._project_id = project_id
        self._json = json
        self._shown: dict[tuple[str, str], ReportEntry] = {}

    async def show(self) -> None:
        """Read the report and write what is new in it. Raises ClientError."""
        report = await self._client.responses.get_report(self._program_id, project_id=self._project_id)
        for entry in _declared_first(report):
            key = (entry.measure_name, entry.context_id)
            if self._shown.get(key) != entry:
                self._shown[key] = entry
                write_json(entry) if self._json else write_line("\n".join(render(entry)))


async def _watch(client: AsyncClient, program_id: str, board: _Board) -> None:
    """Write what changes, over as many connections as it takes. Raises ClientError when it cannot go on."""
    loop, backoff, attempt = asyncio.get_running_loop(), Backoff(), 0
    while True:
        began_s = loop.time()
        try:
            async for _ in client.responses.follow(program_id, followed=board.show):
                await board.show()
        except (ConnectionFailed, ServerError) as error:
            write_notice(f"{error}; trying again")
            attempt = 0 if loop.time() - began_s >= _STABLE_S else attempt + 1
            await asyncio.sleep(backoff.delay_s(attempt))


def _declared_first(entries: Sequence[_Entry]) -> list[_Entry]:
    """Measures that no event declares, which anybody may begin under any poll's title, come last."""
    return sorted(entries, key=lambda entry: not entry.is_declared)


def _name(entry: ReportEntry | IntegrityEntry) -> str:
    return entry.measure_name if entry.is_declared else f"{entry.measure_name}, not declared"


def render_integrity(poll: IntegrityEntry) -> Sequence[str]:
    """What looks wrong in a poll, for people."""
    heading = f"{poll.title}  ({_name(poll)}, visitors: {poll.visitors}"
    if not poll.is_watched:
        return [f"{heading}, not watched)"]
    networks = ", ".join(f"{votes:,}" for votes in poll.networks) or "none"
    most = max((minute.votes for minute in poll.minutes), default=0)
    return [
        f"{heading}, {poll.votes:,} votes watched)",
        f"  largest networks  {networks}; all others {poll.other_votes:,}",
        f"  largest minute    {most:,}",
        f"  names in rows     {poll.in_row:,}",
        *(f"  ! {finding}" for finding in poll.findings),
    ]


def render(entry: ReportEntry) -> Sequence[str]:
    """A small table for people: a heading, and a line an option."""
    shown = f", shown {entry.impressions.total:,} times" if entry.impressions.total else ""
    width = max((len(option.label) for option in entry.options), default=0)
    digits = len(f"{entry.total:,}")
    lines = [f"{entry.title}  ({_name(entry)}, {entry.total:,} answers{shown})"]
    for option in entry.options:
        share = option.total / entry.total if entry.total else 0.0
        bar = "█" * round(share * _BAR)
        lines.append(f"  {option.label:<{width}}  {option.total:>{digits},}  {share:>4.0%}  {bar}".rstrip())
    return lines
