"""`broker token`."""

from datetime import datetime
from typing import Annotated

import typer

from broker.cli.options import Commands
from broker.cli.output import write_json, write_line, write_notice
from broker.cli.remote import JsonOption, Remote

app = Commands("Create, list and revoke your API tokens.")


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Name of the token, such as its purpose.")],
    expires: Annotated[
        str | None, typer.Option(help="Expiry, ISO 8601: 2027-01-01; by default none.")
    ] = None,
    *,
    remote: Remote,
    json: JsonOption = False,
) -> None:
    """Create an API token and write it to standard output. It cannot be shown again."""
    made = remote.call(lambda client: client.api_tokens.create(name, expires))
    if json:
        write_json(made)
        return
    write_notice(f"token {made.name} ({made.id}), which is shown only now:")
    write_line(made.token or "")


@app.command("list")
def list_(*, remote: Remote, json: JsonOption = False) -> None:
    """List your API tokens, oldest first, without the tokens themselves."""
    found = remote.call(lambda client: client.api_tokens.list())
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
    *,
    remote: Remote,
) -> None:
    """Revoke an API token; the access tokens that came from it end too."""
    remote.call(lambda client: client.api_tokens.delete(token_id))
    write_line(f"{token_id} is revoked")


def _day(moment: datetime) -> str:
    return f"{moment.astimezone():%Y-%m-%d}"
