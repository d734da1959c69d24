"""`broker images`."""

import asyncio
from typing import Annotated

import typer

from broker.cli.output import write_json, write_line
from broker.cli.remote import Json, Password, TokenOption, Url, Username, connected
from broker.client import WarmedPicture

app = typer.Typer(
    help="What caches keep of pictures.",
    no_args_is_help=True,
    add_completion=False,
)


@app.command()
def purge(
    source: Annotated[
        str | None, typer.Argument(help="URL of the original, as pictures name it.", show_default=False)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All pictures of the account.")] = False,
    url: Url = None,
    token: TokenOption = None,
    username: Username = None,
    password: Password = None,
) -> None:
    """Forget a source and all that was made of it, on every node; needs an admin."""
    if (source is None) != everything:
        raise typer.BadParameter("give either the URL of an original, or --all")

    async def run() -> None:
        async with connected(url, token, username, password) as client:
            if source is None:
                await client.images.purge_all()
            else:
                await client.images.purge(source)

    asyncio.run(run())


@app.command()
def warm(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE...", help="URLs of originals.")],
    options: Annotated[
        list[str] | None,
        typer.Option(help="Such as w=400,h=300,fit=face; any number of times.", show_default=False),
    ] = None,
    url: Url = None,
    token: TokenOption = None,
    username: Username = None,
    password: Password = None,
    json: Json = False,
) -> None:
    """Make pictures before somebody asks for them; fails unless all are there."""

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
