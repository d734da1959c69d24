"""`broker import` and `broker export`."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import orjson
import typer

from broker.cli.output import transfer_bar, write_json, write_line
from broker.cli.output_file import STANDARD_OUTPUT, open_output
from broker.cli.remote import JsonOption, ProgramId, Remote
from broker.client import Imported

_LINE_SUFFIXES = (".ndjson", ".jsonl")


def import_(
    program: ProgramId,
    file: Annotated[
        Path,
        typer.Argument(
            exists=True, dir_okay=False, readable=True, help="File in the format of `broker export`."
        ),
    ],
    ndjson: Annotated[
        bool,
        typer.Option(
            "--ndjson", help="The file has one event per line; the default for *.ndjson and *.jsonl."
        ),
    ] = False,
    *,
    remote: Remote,
    json: JsonOption = False,
) -> None:
    """Replace all events of a program with those of a file. If one is invalid, nothing changes."""
    has_lines = ndjson or file.suffix in _LINE_SUFFIXES

    async def run() -> Imported:
        async with remote.open_client() as client:
            with transfer_bar(f"importing {file.name}", file.stat().st_size) as meter:
                source = read_lines(file) if has_lines else file
                return await client.events.import_all(program, source, progress=meter.update)

    imported = asyncio.run(run())
    if json:
        write_json(imported)
    else:
        write_line(f"{imported.imported} events imported, {imported.deleted} deleted")


def export(
    program: ProgramId,
    file: Annotated[
        Path, typer.Argument(dir_okay=False, help="File to write; - is standard output, the default.")
    ] = STANDARD_OUTPUT,
    ndjson: Annotated[bool, typer.Option("--ndjson", help="Write one event per line.")] = False,
    *,
    remote: Remote,
) -> None:
    """Write a program's events to a file, which appears only when it is complete."""

    async def run(target: BinaryIO) -> None:
        done = 0
        async with remote.open_client() as client:
            with transfer_bar(f"exporting {program}", None) as meter:
                async for chunk in client.events.export_all(program, ndjson=ndjson):
                    target.write(chunk)
                    done += len(chunk)
                    meter.update(done)

    # Before an event loop, which a FIFO that nobody reads yet would block.
    with open_output(file, is_text=True) as target:
        asyncio.run(run(target))


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """The events of a file with one a line, empty ones passed over.

    Raises:
        ValueError: names the line; or there is no event, as in a file that another program failed to write.
    """
    is_empty = True
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                event = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise ValueError(f"{file}, line {number}: invalid JSON: {error}") from None
            if not isinstance(event, dict):
                raise ValueError(f"{file}, line {number}: must be a JSON object")
            is_empty = False
            yield event
    if is_empty:
        raise ValueError(
            f'{file} has no event; to delete all events, import a JSON file with {{"events": []}}'
        )
