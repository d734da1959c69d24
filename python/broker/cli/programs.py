"""`broker program`."""

from typing import Annotated

import typer

from broker.cli.confirmation import YesOption, confirm
from broker.cli.options import Commands
from broker.cli.output import write_json, write_line, write_notice
from broker.cli.publish import read_metadata
from broker.cli.remote import JsonOption, ProgramId, Remote
from broker.client import AsyncClient, Program

app = Commands("Create, list, show and delete programs.")

_PAGE = 1_000  # the most that one call gives


@app.command()
def create(
    program: ProgramId,
    name: Annotated[str | None, typer.Option(help="Name; by default the id.")] = None,
    project: Annotated[str | None, typer.Option(help="Id of the program's project.")] = None,
    start: Annotated[str | None, typer.Option(help="Scheduled start, ISO 8601: 2026-07-19T19:00Z.")] = None,
    end: Annotated[str | None, typer.Option(help="Scheduled end, ISO 8601.")] = None,
    private: Annotated[bool, typer.Option("--private", help="Require a token to follow it.")] = False,
    metadata: Annotated[str | None, typer.Option(help="JSON object, @FILE, or - for standard input.")] = None,
    *,
    remote: Remote,
    json: JsonOption = False,
) -> None:
    """Create a program."""
    more = read_metadata(metadata)

    async def work(client: AsyncClient) -> Program:
        return await client.programs.create(
            program,
            name or program,
            scheduled_start_time=start,
            scheduled_end_time=end,
            project_id=project,
            access="private" if private else None,
            metadata=more,
        )

    _show(remote.call(work), json)


@app.command("list")
def list_(
    search: Annotated[str | None, typer.Option(help="Text that the name or the id contains.")] = None,
    project: Annotated[str | None, typer.Option(help="Only programs of this project.")] = None,
    live: Annotated[bool, typer.Option("--live", help="Only live programs.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of programs.")] = 100,
    *,
    remote: Remote,
    json: JsonOption = False,
) -> None:
    """List the programs that you may publish to, newest first."""

    async def work(client: AsyncClient) -> tuple[list[Program], int]:
        found = list[Program]()
        while True:
            page = await client.programs.filter(
                search=search,
                project_id=project,
                live=True if live else None,
                sort="createdTime",
                order="desc",
                limit=min(limit - len(found), _PAGE),
                skip=len(found),
            )
            found += page.items
            if not page.items or len(found) >= min(limit, page.total):
                return found, page.total

    programs, total = remote.call(work)
    width = max((len(program.id) for program in programs), default=0)
    for program in programs:
        _show(program, json, width)
    if total > len(programs):
        write_notice(f"{total - len(programs)} more; --limit {total} lists them all")
    if not total:
        write_notice("no programs")


@app.command()
def show(program: ProgramId, *, remote: Remote, json: JsonOption = False) -> None:
    """Show one program with all its fields."""
    found = remote.call(lambda client: client.programs.get(program))
    if json:
        write_json(found)
        return
    write_line(f"{found.id}  {found.name}")
    rows = {
        "status": "live" if found.live else "not live",
        "access": found.access,
        "project": found.project_id,
        "starts": found.scheduled_start_time,
        "ends": found.scheduled_end_time,
        "created": found.created_time,
        "updated": found.updated_time,
        "metadata": found.metadata or None,
    }
    for name, value in rows.items():
        if value is not None:
            write_line(f"  {name:<9} {value}")


@app.command()
def delete(
    program: ProgramId,
    yes: YesOption = False,
    *,
    remote: Remote,
) -> None:
    """Delete a program with all its events and results."""
    confirm(f"Delete {program} with all its events and results?", yes)
    remote.call(lambda client: client.programs.delete(program))
    write_line(f"{program} is deleted")


def _show(program: Program, json: bool, width: int = 0) -> None:
    if json:
        write_json(program)
    else:
        state = "live" if program.live else "-"
        write_line(f"{program.id:<{width}}  {state:<4}  {program.access:<7}  {program.name}")
