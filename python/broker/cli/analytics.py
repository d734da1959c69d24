"""`broker analytics`."""

from collections.abc import Sequence
from typing import Annotated

import typer

from broker.cli.options import Commands
from broker.cli.output import write_json, write_line
from broker.cli.remote import JsonOption, Remote
from broker.client import AnalyticsSite

app = Commands("Set up and verify analytics sites.")
site = Commands("The site of a project in Matomo.")
app.add_typer(site, name="site")

ProjectId = Annotated[str, typer.Argument(metavar="PROJECT", help="Id of the project.")]


@site.command()
def status(project: ProjectId, *, remote: Remote, json: JsonOption = False) -> None:
    """Verify a project's site. Fails unless its status is ok."""
    found = remote.call(lambda client: client.analytics.get_site(project))
    _show(found, json)
    if found.status != "ok":
        raise typer.Exit(1)


@site.command()
def create(project: ProjectId, *, remote: Remote, json: JsonOption = False) -> None:
    """Create a project's site with its dimensions and reports."""
    _show(remote.call(lambda client: client.analytics.create_site(project)), json)


@site.command()
def complete(project: ProjectId, *, remote: Remote, json: JsonOption = False) -> None:
    """Add the missing dimensions and reports to a project's site."""
    _show(remote.call(lambda client: client.analytics.complete_site(project)), json)


def _show(found: AnalyticsSite, json: bool) -> None:
    if json:
        write_json(found)
    else:
        write_line("\n".join(render(found)))


def render(found: AnalyticsSite) -> Sequence[str]:
    """The status for people: one line, then one for each thing that is known of the site."""
    lines = [f"{found.status}: {found.message}"]
    if found.id_site is not None:
        lines.append(f"  site {found.id_site}")
    for scope, ids in found.dimension_ids.items():
        lines += [f"  dimension {scope}.{name} is {id_}" for name, id_ in sorted(ids.items())]
    lines += [f"  report {name} is {id_}" for name, id_ in sorted(found.report_ids.items())]
    return lines
