"""`broker publish`."""

import sys
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from broker.cli.output import write_json, write_line
from broker.cli.remote import JsonOption, ProgramId, Remote
from broker.client import NewEvent


def publish(
    program: ProgramId,
    event: Annotated[str, typer.Argument(help="Component#action, such as Score#update.")],
    metadata: Annotated[str | None, typer.Option(help="JSON object, @FILE, or - for standard input.")] = None,
    timestamp: Annotated[
        int | None, typer.Option(help="Time of the event, in milliseconds since 1970.")
    ] = None,
    timecode: Annotated[
        int | None, typer.Option(help="Position of the event in the program, in milliseconds since 1970.")
    ] = None,
    *,
    remote: Remote,
    json: JsonOption = False,
) -> None:
    """Publish an event. Returns when the event is durable."""
    new = NewEvent(event, read_metadata(metadata), timestamp, timecode)
    published = remote.call(lambda client: client.publish(program, new))
    if json:
        write_json(published)
    else:
        write_line(f"{published.seq} {published.event} {published.id}")


def read_metadata(text: str | None) -> dict[str, Any] | None:
    """The object that `--metadata` means. Raises BadParameter, OSError."""
    if text is None:
        return None
    if text == "-":
        content = sys.stdin.buffer.read()
    elif text.startswith("@"):
        content = Path(text[1:]).read_bytes()
    else:
        content = text.encode()
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise typer.BadParameter(f"--metadata is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise typer.BadParameter("--metadata must be a JSON object")
    return value
