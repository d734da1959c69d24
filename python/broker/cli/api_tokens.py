"""`broker token`."""

from datetime import datetime
from typing import Annotated

import typer

from broker.cli.output import write_json, write_line
from broker.cli.remote import Json, Password, TokenOption, Url, Username, call, write_notice

app = typer.Typer(help="Create, list and revoke your API tokens.", no_args_is_help=True, add_completion=False)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Name of the token, such as its purpose.")],
    expires: Annotated[
        str | None,
        typer.Option(help="Expiry, ISO 8601: 2027-01-01; by default none.", show_default=False),
    ] = None,
    url: Url = None,
    token: TokenOption = None,
    username: Username = None,
    password: Password = None,
    json: Json = False,
) -> None:
    """Create an API token and write it to standard output. It cannot be shown again."""
    made = call(lambda client: client.api_tokens.create(name, expires), url, token, username, password)
    if json:
        write_json(made)
        return
    write_notice(f"token {made.name} ({made.id}), which is shown only now:")
    write_line(made.token or "")


@app.command("list")
def list_(
    url: Url = None,
    token: TokenOption = None,
    username: Username = None,
    password: Password = None,
    json: Json = False,
) -> None:
    """List your API tokens, oldest first, without the tokens themselves."""
    found = call(lambda client: client.api_tokens.list(), url, token, username, password)
    for each in found:
        if json:
            write_json(each)
        else:
            ends = f"until {_day(each.expires)}" if each.expires else "until revoked"
            write_line(f"{each.id}  since {_day(each.created_time)}, {ends}  {each.name}")
    if not found:
        write_notice("no API tokens")


@app.command()
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="As `broker token list` shows it.")],
    url: Url = None,
    token: TokenOption = None,
    username: Username = None,
    password: Password = None,
) -> None:
    """Revoke an API token; the access tokens that came from it end too."""
    call(lambda client: client.api_tokens.delete(token_id), url, token, username, password)
    write_line(f"{token_id} is revoked")


def _day(moment: datetime) -> str:
    return f"{moment.astimezone():%Y-%m-%d}"
