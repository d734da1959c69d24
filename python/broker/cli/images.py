"""`broker images`."""

from typing import Annotated

import typer

from broker.cli.options import Commands
from broker.cli.output import write_json, write_line
from broker.cli.remote import JsonOption, Remote

app = Commands("Manage cached images.")


@app.command()
def purge(
    source: Annotated[
        str | None, typer.Argument(help="URL of the source image, spelled as in image requests.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All images of the account.")] = False,
    *,
    remote: Remote,
) -> None:
    """Purge a source and everything derived from it from all nodes. Requires an admin."""
    if (source is None) != everything:
        raise typer.BadParameter("give either the URL of a source image, or --all")

    if source is None:
        remote.call(lambda client: client.images.purge_all())
    else:
        remote.call(lambda client: client.images.purge(source))


@app.command()
def warm(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE...", help="URLs of source images.")],
    options: Annotated[
        list[str] | None, typer.Option(help="Image options, such as w=400,h=300,fit=face; can be repeated.")
    ] = None,
    *,
    remote: Remote,
    json: JsonOption = False,
) -> None:
    """Produce images before they are requested. Fails unless all of them succeed."""
    made = remote.call(lambda client: client.images.warm(sources, options or ["-"]))
    for image in made:
        if json:
            write_json(image)
        else:
            reason = f": {image.message}" if image.message else ""
            write_line(f"{image.error or 'ready'} {image.options} {image.url}{reason}")
    if any(image.error for image in made):
        raise typer.Exit(1)
