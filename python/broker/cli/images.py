"""`broker images`."""

import asyncio
from typing import Annotated

import typer

from broker.cli.output import write_json, write_line
from broker.cli.remote import Json, Password, TokenOption, Url, Username, connected
from broker.client import WarmedPicture

app = typer.Typer(
    help="Manage cached images.",
    no_args_is_help=True,
    add_completion=False,
)


@app.command()
def purge(
    source: Annotated[
        str | None,
        typer.Argument(help="URL of the source image, spelled as in image requests.", show_default=False),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All images of the account.")] = False,
    url: Url = None,
    token: TokenOption = None,
    username: Username = None,
    password: Password = None,
) -> None:
    """Purge a source and everything derived from it from all nodes. Requires an admin."""
    if (source is None) != everything:
        raise typer.BadParameter("give either the URL of a source image, or --all")

    async def run() -> None:
        async with connected(url, token, username, password) as client:
            if source is None:
                await client.images.purge_all()
            else:
                await client.images.purge(source)

    asyncio.run(run())


@app.command()
def warm(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE...", help="URLs of source images.")],
    options: Annotated[
        list[str] | None,
        typer.Option(
            help="Image options, such as w=400,h=300,fit=face; can be repeated.", show_default=False
        ),
    ] = None,
    url: Url = None,
    token: TokenOption = None,
    username: Username = None,
    password: Password = None,
    json: Json = False,
) -> None:
    """Produce images before they are requested. Fails unless all of them succeed."""

    async def run() -> tuple[WarmedPicture, ...]:
        async with connected(url, token, username, password) as client:
            return await client.images.warm(sources, options or ["-"])

    made = asyncio.run(run())
    for picture in made:
        if json:
            write_json(picture)
        else:
            write_line(f"{picture.error or 'ready'} {picture.options} {picture.url}")
    if any(picture.error for picture in made):
        raise typer.Exit(1)
