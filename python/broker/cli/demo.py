"""`broker demo`."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from broker.cli.administration import administer_async
from broker.demo.cast import ensure_cast
from broker.demo.play import Plan, play
from broker.demo.stage import ACCOUNT
from broker.settings import Settings


def demo(
    seconds: Annotated[
        float | None, typer.Option(min=1, help="Seconds after which it ends; without it, Ctrl-C ends it.")
    ] = None,
    viewers: Annotated[int, typer.Option(min=1, max=5000, help="Number of simulated viewers.")] = 200,
    voters: Annotated[int, typer.Option(min=1, max=5000, help="Number of simulated voters.")] = 500,
    data_dir: Annotated[Path, typer.Option(help="Directory of the demonstration's database.")] = Path(
        ".broker-demo"
    ),
    http_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="HTTP port; 8000 if it is free, otherwise any free port."),
    ] = None,
    ws_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="WebSocket port; 8001 if it is free, otherwise any free port."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random final.")] = 2026,
    speed: Annotated[float, typer.Option(min=1, max=600, help="Speed relative to real time.")] = 30.0,
) -> None:
    """Play a scripted final to simulated viewers and voters.

    Fails unless each viewer saw all of it in order, and the report counts exactly the acknowledged answers.
    """
    plan = Plan(data_dir, viewers, voters, seconds, seed, speed, http_port, ws_port)
    settings = Settings(data_dir=data_dir)

    async def prepare() -> None:
        await administer_async(
            settings, lambda administration: ensure_cast(administration, ACCOUNT), makes_database=True
        )

    verdict = asyncio.run(play(plan, Console(), prepare))
    if verdict.faults:
        raise typer.Exit(1)
