"""`broker account`."""

from typing import Annotated, Any

import typer

from broker.cli.administration import DatabaseUrl, DataDir, administer
from broker.cli.output import write_json, write_line
from broker.cli.remote import Json
from broker.settings import Settings
from broker.storage.accounts import Account

app = typer.Typer(
    help="Make and change accounts, in the database.", no_args_is_help=True, add_completion=False
)

Name = Annotated[str, typer.Argument(help="Lowercase letters, digits and hyphens.")]
Origins = Annotated[
    list[str] | None,
    typer.Option(
        "--origin", help="A web origin whose pages may connect; repeat for more.", show_default=False
    ),
]


@app.command()
def add(
    name: Name,
    origin: Origins = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Make an account; without --origin pages of any origin may connect."""
    settings = Settings.load(data_dir=data_dir, database_url=database_url)
    origins = None if origin is None else tuple(origin)
    account = administer(settings, lambda administration: administration.add_account(name, origins))
    _show(account, json)


@app.command("list")
def list_(data_dir: DataDir = None, database_url: DatabaseUrl = None, json: Json = False) -> None:
    """List all accounts."""
    settings = Settings.load(data_dir=data_dir, database_url=database_url)
    for account in administer(settings, lambda administration: administration.list_accounts()):
        _show(account, json)


@app.command("set")
def set_(
    name: Name,
    origin: Origins = None,
    any_origin: Annotated[
        bool, typer.Option("--any-origin", help="Let pages of any origin connect.")
    ] = False,
    no_origin: Annotated[bool, typer.Option("--no-origin", help="Let no page connect.")] = False,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    json: Json = False,
) -> None:
    """Replace an account's allowed origins."""
    if (origin is not None) + any_origin + no_origin != 1:
        raise typer.BadParameter("give either --origin, --any-origin or --no-origin")
    settings = Settings.load(data_dir=data_dir, database_url=database_url)
    origins = None if any_origin else tuple(origin or ())
    account = administer(settings, lambda administration: administration.set_origins(name, origins))
    _show(account, json)


def _show(account: Account, json: bool) -> None:
    wire: dict[str, Any] = {
        "name": account.name,
        "origins": None if account.origins is None else [*account.origins],
        "createdTime": account.created_time,
    }
    if json:
        write_json(wire | {"createdTime": account.created_time.isoformat()})
        return
    origins = "any origin" if account.origins is None else ", ".join(account.origins) or "no origin"
    write_line(f"{account.name}  ({origins})")
