"""`broker scale`."""

import asyncio
import time
from typing import Annotated

import typer

from broker.actors.placement import slot_name
from broker.cli.administration import DatabaseOptions, open_database
from broker.cli.output import write_json, write_line, write_notice
from broker.cli.remote import JsonOption
from broker.owners.placement import OWNER
from broker.settings import Settings
from broker.setup_error import SetupError
from broker.storage.placements import PlacementRow, Placements

_OWNERS = range(1, 1025)  # as the setting has it
_LOOK_S = 0.2


def scale(
    numbers: Annotated[
        list[str] | None,
        typer.Argument(metavar="owners=NUMBER", help="Without it the present number is shown."),
    ] = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait until it is in effect; 0 does not wait.")] = 60,
    *,
    database: DatabaseOptions,
    json: JsonOption = False,
) -> None:
    """Change the number of program owners while the product runs.

    `broker up` starts the processes; then the programs move. Publishes wait meanwhile, for a fraction of a
    second; none is lost.
    """
    owners = _parse(numbers or [])
    settings = database.settings()
    before, after = asyncio.run(_scale(settings, owners, wait))
    present = after.in_effect(settings.owners).owners
    wanted = after.wanted_owners or present
    if json:
        write_json({"owners": present, "wanted": wanted})
    elif wanted != present:
        write_line(f"owners: {present}; {wanted} are wanted, which `broker up` sees to")
    elif before != present:
        write_line(f"owners: {before} before, {present} now")
    else:
        write_line(f"owners: {present}")


def _parse(numbers: list[str]) -> int | None:
    owners = None
    for each in numbers:
        name, _, number = each.partition("=")
        if name != "owners":
            raise typer.BadParameter(f"{each}: only owners=NUMBER can be changed")
        if not (number.isascii() and number.isdigit() and int(number) in _OWNERS):
            raise typer.BadParameter(f"{each}: must be a number from {_OWNERS[0]} to {_OWNERS[-1]}")
        owners = int(number)
    return owners


async def _scale(settings: Settings, owners: int | None, wait_s: float) -> tuple[int, PlacementRow]:
    """Ask for a number, and wait for it; the number before, and what is after.

    Raises:
        SetupError: it is not in effect in time, or is no longer wanted.
    """
    async with open_database(settings) as database:
        placements = Placements(database)
        before = (await placements.read()).in_effect(settings.owners).owners
        if owners is not None:
            await placements.want(owners)
            if wait_s:
                await _until_in_effect(placements, settings, owners, wait_s)
        return before, await placements.read()


async def _until_in_effect(placements: Placements, settings: Settings, owners: int, wait_s: float) -> None:
    deadline_s = time.monotonic() + wait_s
    slots = [slot_name(OWNER, index) for index in range(owners)]
    told = ""
    while True:
        row = await placements.read()
        if row.wanted_owners != owners:
            raise SetupError(
                f"another `broker scale` wants {row.wanted_owners} owners; {owners} are no longer waited for"
            )
        present = row.in_effect(settings.owners)
        acting = await placements.count_followers(slots, present.version) if present.owners == owners else 0
        if acting == owners:
            return
        told = _tell(row, owners, acting, told)
        if time.monotonic() >= deadline_s:
            raise SetupError(
                f"{owners} owners are wanted, but not in effect after {wait_s:g} s; does `broker up` run?"
            )
        await asyncio.sleep(_LOOK_S)


def _tell(row: PlacementRow, owners: int, acting: int, told: str) -> str:
    """A line on standard error about each step."""
    if row.owners != owners:
        line = f"waiting for `broker up` to start {owners} owners"
    else:
        line = f"{acting} of {owners} owners have the new placement"
    if line != told:
        write_notice(line)
    return line
