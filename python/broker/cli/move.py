"""`broker move`."""

import asyncio
from contextlib import AsyncExitStack
from typing import Annotated

import typer

from broker.cli.administration import DatabaseOptions, open_dsn, require_database
from broker.cli.output import transfer_bar, write_json, write_line
from broker.cli.remote import JsonOption, read_secret
from broker.deployments.data_dir import claim
from broker.storage.move import OLD, reaching
from broker.storage.move import move as move_database


def move(
    to: Annotated[
        str,
        typer.Option(
            "--to",
            envvar="BROKER_MOVE_TO",
            help="postgresql:// URL of an empty database; - reads a line of standard input. Other users of"
            " this machine see a password on the command line; prefer the environment variable.",
        ),
    ],
    *,
    database: DatabaseOptions,
    json: JsonOption = False,
) -> None:
    """Copy everything to another PostgreSQL, for example from the embedded one to your own.

    The product must be stopped. The new database is complete or empty, and the old one stays as it is. Then
    start the product with the new database as BROKER_DATABASE_URL: viewers go on where they were.
    """
    settings = database.settings()
    target = read_secret(to)
    if not target:  # the driver would look for a server in places of its own
        raise typer.BadParameter("--to must be the URL of a database")
    require_database(settings)  # before its directory is claimed, which would make that

    async def run() -> dict[str, int]:
        async with AsyncExitStack() as stack:
            if not settings.database_url:
                stack.callback(claim(settings.data_dir).release)
            with reaching(OLD):
                dsn = await stack.enter_async_context(open_dsn(settings))
            with transfer_bar("moving", None) as meter:
                return await move_database(dsn, target, meter.update)

    counts = asyncio.run(run())
    if json:
        write_json({"rows": counts})
        return
    write_line(
        f"moved {counts['accounts']} accounts, {counts['programs']} programs, {counts['events']} events;"
        f" {sum(counts.values())} rows, counted in the new database"
    )
    write_line("set BROKER_DATABASE_URL to the new database before the next `broker up`")
