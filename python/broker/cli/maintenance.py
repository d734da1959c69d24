"""`broker maintenance`."""

from typing import Annotated

import typer

from broker.cli.administration import DatabaseOptions
from broker.cli.options import Commands
from broker.cli.output import write_json, write_line
from broker.cli.remote import JsonOption
from broker.domain.maintenance import DEFAULT_MESSAGE, DEFAULT_RETRY_AFTER_S, MOST_RETRY_AFTER_S, Maintenance

app = Commands("Refuse changes while reading and following go on, as before work on the database.")


@app.command()
def on(
    message: Annotated[
        str | None, typer.Option(help="What callers are told; it is public.", show_default=DEFAULT_MESSAGE)
    ] = None,
    retry_after: Annotated[
        int | None,
        typer.Option(
            help="Seconds after which refused callers may try again.",
            min=1,
            max=MOST_RETRY_AFTER_S,
            show_default=str(DEFAULT_RETRY_AFTER_S),
        ),
    ] = None,
    *,
    database: DatabaseOptions,
    json: JsonOption = False,
) -> None:
    """Refuse every change with 503 `maintenance`. Again to change what is given; the rest stays.

    Every process learns it within a second; changes that were accepted before are finished. It stays on until
    it is switched off, also across restarts.
    """
    _show(database.administer(lambda admin: admin.begin_maintenance(message, retry_after)), json)


@app.command()
def off(*, database: DatabaseOptions, json: JsonOption = False) -> None:
    """Accept changes again."""
    _show(database.administer(lambda admin: admin.end_maintenance()), json)


@app.command()
def status(*, database: DatabaseOptions, json: JsonOption = False) -> None:
    """Say whether it is on."""
    _show(database.administer(lambda admin: admin.find_maintenance()), json)


def _show(maintenance: Maintenance | None, json: bool) -> None:
    told = None if maintenance is None else maintenance.fields()
    if json:
        write_json({"maintenance": told})
    elif told is None:
        write_line("maintenance is off")
    else:
        write_line(f"maintenance is on since {told['since']}, retry after {told['retryAfter']} s:")
        write_line(f"  {told['message']}")
