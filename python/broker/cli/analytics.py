"""`broker analytics`."""

from collections.abc import Sequence
from typing import Annotated

import typer

from broker.cli.output import write_json, write_line
from broker.cli.remote import Json, Password, TokenOption, Url, Username, call
from broker.client import AnalyticsSite

app = typer.Typer(help="Set up and verify analytics sites.", no_args_is_help=True, add_completion=False)
site = typer.Typer(help="The site of a project in Matomo.", no_args_is_help=True, add_completion=False)
app.add_typer(site, name="site")

ProjectId = Annotated[str, typer.Argument(metavar="PROJECT", help="Id of the project.")]


@site.command()
def status(
    project: ProjectId,
    url: Url = None,
    token: TokenOption = None,
    username: Username = None,
    password: Password = None,
    json: Json = False,
) -> None:
    """Verify a project's site. Fails unless its status is ok."""
    found = call(lambda client: client.analytics.get_site(project), url, token, username, password)
    _show(found, json)
    if found.status != "ok":
        raise typer.Exit(1)


@site.command()
def create(
    project: ProjectId,
    url: Url = None,
    token: TokenOption = None,
    username: Username = None,
    password: Password = None,
    json: Json = False,
) -> None:
    """Create a project's site with its dimensions and reports."""
    _show(call(lambda client: client.analytics.create_site(project), url, token, username, password), json)


@site.command()
def complete(
    project: ProjectId,
    url: Url = None,
    token: TokenOption = None,
    username: Username = None,
    password: Password = None,
    json: Json = False,
) -> None:
    """Add the missing dimensions and reports to a project's site."""
    _show(call(lambda client: client.analytics.complete_site(project), url, token, username, password), json)


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
