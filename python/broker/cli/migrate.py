"""`broker migrate`."""

import asyncio

from broker.cli.administration import DatabaseOptions, server_dsn
from broker.cli.output import write_json, write_line
from broker.cli.remote import JsonOption
from broker.errors import Unavailable
from broker.settings import Settings
from broker.storage.errors import setup_error
from broker.storage.migrations import migrate as run_migrations


def migrate(*, database: DatabaseOptions, json: JsonOption = False) -> None:
    """Update the database schema to this version, if necessary."""
    settings = database.settings()
    try:
        applied = asyncio.run(_migrate(settings))
    except Unavailable as error:
        raise setup_error(error) from error
    if json:
        write_json({"applied": applied})
        return
    for name in applied:
        write_line(f"applied {name}")
    if not applied:
        write_line("the schema is up to date")


async def _migrate(settings: Settings) -> list[str]:
    async with server_dsn(settings) as dsn:
        return await run_migrations(dsn)
