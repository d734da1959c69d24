"""`broker keys`."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from broker.auth.keys import KeyStatus
from broker.cli.administration import DatabaseOptions
from broker.cli.options import Commands
from broker.cli.output import write_json, write_line
from broker.cli.remote import JsonOption

app = Commands("List, rotate and revoke the signing keys of access tokens in the database.")


@app.command("list")
def list_(*, database: DatabaseOptions, json: JsonOption = False) -> None:
    """List the keys, oldest first."""
    _show(database.administer(lambda admin: admin.list_keys()), json)


@app.command()
def rotate(*, database: DatabaseOptions, json: JsonOption = False) -> None:
    """Create a new key, which signs a minute later. Logs nobody out. Runs by itself every 30 days."""
    _show(database.administer(lambda admin: admin.rotate_keys()), json)


@app.command()
def revoke(
    kids: Annotated[
        list[str] | None, typer.Argument(metavar="KID...", help="Ids of the keys, as shown by `list`.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="All keys, for example after a leak of the database.")
    ] = False,
    *,
    database: DatabaseOptions,
    json: JsonOption = False,
) -> None:
    """Revoke keys that may have leaked. Their tokens are refused within 5 s, and a new key signs."""
    if bool(kids) == every:
        raise typer.BadParameter("give either the keys or --all")
    _show(database.administer(lambda admin: admin.revoke_keys(kids or None)), json)


def _show(keys: list[KeyStatus], json: bool) -> None:
    for key in keys:
        if json:
            ends = None if key.ends_ms is None else _time(key.ends_ms)
            write_json(
                {"kid": key.kid, "state": key.state, "createdTime": _time(key.created_ms), "endTime": ends}
            )
        else:
            until = "" if key.ends_ms is None else f", until {_time(key.ends_ms)}"
            write_line(f"{key.kid}  {key.state:<9}  since {_time(key.created_ms)}{until}")


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
