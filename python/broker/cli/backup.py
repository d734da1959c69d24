"""`broker backup` and `broker restore`."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from broker import __version__
from broker.cli.administration import DatabaseOptions, open_dsn
from broker.cli.output import transfer_bar, write_json, write_line
from broker.cli.remote import JsonOption
from broker.storage.backup import RowCounts, back_up
from broker.storage.restore import restore as restore_accounts

AccountsOption = Annotated[
    list[str] | None, typer.Option("--account", help="Only this account; can be repeated.")
]


def backup(
    file: Annotated[
        Path,
        typer.Argument(dir_okay=False, help="File to write. It holds secrets, and only you may read it."),
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

    async def run() -> tuple[RowCounts, int]:
        async with open_dsn(settings) as dsn:
            with transfer_bar(f"writing {file.name}", None) as meter:
                return await back_up(dsn, file, __version__, account or (), meter.update)

    counts, size = asyncio.run(run())
    _show(counts, json, {"bytes": size})


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
    log in again. A file that was changed or ends early changes nothing.
    """
    settings = database.settings()

    async def run() -> RowCounts:
        async with open_dsn(settings) as dsn:
            with transfer_bar(f"restoring {file.name}", file.stat().st_size) as meter:
                return await restore_accounts(
                    dsn, file, account or (), replace=replace, progress=meter.update
                )

    _show(asyncio.run(run()), json, {})


def _show(counts: RowCounts, json: bool, more: dict[str, int]) -> None:
    """What was written or restored, by account."""
    if json:
        write_json({"accounts": counts, **more})
        return
    for name, rows in counts.items():
        write_line(
            f"{name}  {rows['programs']} programs, {rows['events']} events, {rows['answer_polls']} polls,"
            f" {rows['users']} users; {sum(rows.values())} rows"
        )
