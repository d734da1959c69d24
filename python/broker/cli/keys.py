"""`broker keys`."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from broker.auth.keys import KeyStatus
from broker.cli.administration import DatabaseUrl, DataDir, administer
from broker.cli.output import write_json, write_line
from broker.cli.remote import Json
from broker.settings import Settings

app = typer.Typer(
    help="List, rotate and revoke the signing keys of access tokens in the database.",
    no_args_is_help=True,
    add_completion=False,
)


@app.command("list")
def list_(data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """List the keys, oldest first."""
    settings = Settings.load(data_dir=data_dir, database_url=database_url)
    _show(administer(settings, lambda administration: administration.list_keys()), json)


@app.command()
def rotate(data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """Create a new key, which signs a minute later. Logs nobody out. Runs by itself every 30 days."""
    settings = Settings.load(data_dir=data_dir, database_url=database_url)
    _show(administer(settings, lambda administration: administration.rotate_keys()), json)


@app.command()
def revoke(
    kids: Annotated[
        list[str] | None, typer.Argument(metavar="KID...", help="Ids of the keys, as shown by `list`.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="All keys, for example after a leak of the database.")
    ] = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Revoke keys that may have leaked. Their tokens are refused within 5 s, and a new key signs."""
    if bool(kids) == every:
        raise typer.BadParameter("give either the keys or --all")
    settings = Settings.load(data_dir=data_dir, database_url=database_url)
    _show(administer(settings, lambda administration: administration.revoke_keys(kids or None)), json)


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
