"""`broker backup` and `broker restore`."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from broker import __version__
from broker.cli.administration import DatabaseOptions, open_dsn, require_database
from broker.cli.output import json_line, transfer_bar, write_line, write_notice
from broker.cli.output_file import is_standard_output, open_output
from broker.cli.remote import JsonOption
from broker.deployments.data_dir import has_database
from broker.storage.backup import RowCounts, back_up
from broker.storage.restore import restore as restore_accounts

AccountsOption = Annotated[
    list[str] | None, typer.Option("--account", help="Only this account; can be repeated.")
]


def backup(
    file: Annotated[
        Path,
        typer.Argument(
            dir_okay=False,
            help="File to write; - is standard output. It holds secrets, and only you may read it.",
        ),
    ],
    account: AccountsOption = None,
    *,
    database: DatabaseOptions,
    json: JsonOption = False,
) -> None:
    """Write a backup of all accounts, or of some, as of this moment.

    Everything may run meanwhile, and nobody waits for it. The file appears only when it is complete.
    """
    settings = database.settings()

    async def run(target: BinaryIO) -> tuple[RowCounts, int]:
        async with open_dsn(settings) as dsn:
            with transfer_bar(f"writing {file.name}", None) as meter:
                return await back_up(dsn, target, __version__, account or (), meter.update)

    require_database(settings)
    # Before an event loop, which a FIFO that nobody reads yet would block.
    with open_output(file, mode=0o600) as target:
        counts, size = asyncio.run(run(target))
    write = write_notice if is_standard_output(file) else write_line  # which may be the backup
    _show(counts, size, json, write)
    if not json:
        write(f"backup of {_accounts(counts)} in {file}, {size:,} bytes")


def restore(
    file: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, readable=True, help="File of `broker backup`.")
    ],
    account: AccountsOption = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace accounts that exist; all that they have now is lost.")
    ] = False,
    *,
    database: DatabaseOptions,
    json: JsonOption = False,
) -> None:
    """Restore the accounts of a backup, or some of them, all or nothing.

    Everything may run meanwhile: viewers of a replaced account are told that history was replaced, its users
    log in again. A file that was changed or ends early changes nothing. If there is no database yet, it makes
    one.
    """
    settings = database.settings()
    if not settings.database_url and not has_database(settings.data_dir):
        write_notice(f"there is no database in {settings.data_dir.absolute()} yet; making one")

    async def run() -> RowCounts:
        async with open_dsn(settings, makes_database=True) as dsn:
            with transfer_bar(f"restoring {file.name}", file.stat().st_size) as meter:
                return await restore_accounts(
                    dsn, file, account or (), replace=replace, progress=meter.update
                )

    counts, size = asyncio.run(run()), file.stat().st_size
    _show(counts, size, json, write_line)
    if not json:
        write_line(f"restored {_accounts(counts)} from {file}, {size:,} bytes")


def _accounts(counts: RowCounts) -> str:
    return f"{len(counts)} account{'s' * (len(counts) != 1)}"


def _show(counts: RowCounts, size: int, json: bool, write: Callable[[str], None]) -> None:
    """What was written or restored, by account."""
    if json:
        write(json_line({"accounts": counts, "bytes": size}))
        return
    for name, rows in counts.items():
        write(
            f"{name}  {rows['programs']} programs, {rows['events']} events, {rows['answer_polls']} polls,"
            f" {rows['users']} users; {sum(rows.values())} rows"
        )
