"""What the demonstration shows."""

import asyncio
import io
from pathlib import Path

import pytest
from rich.console import Console

from broker.client import AsyncClient, Cursor, Event
from broker.clock import SystemClock
from broker.demo import view
from broker.demo.audience import Crowd
from broker.demo.stage import Stage, choose_ports
from tests.client.peer import event

pytestmark = pytest.mark.anyio


def _event(seq: int, name: str, **metadata: object) -> Event:
    return Event.parse(event(seq, event=name, metadata=metadata))


async def _stage() -> Stage:
    died = asyncio.create_task(asyncio.sleep(0))
    await died
    return Stage("http://demo.localhost:8123", 8123, 8124, Path("x"), died)


def test_board_follows_score_clock_and_what_is_on_air() -> None:
    board = view.Board()
    board.apply(_event(1, "Score#update", home=2, away=1, homeTeam="NOR", awayTeam="SOU"))
    board.apply(_event(3, "Lineup#show", team="Northport"))
    board.apply(_event(2, "Clock#update", clock="23:45"))
    assert board.headline() == "NOR 2 : 1 SOU   23:45"
    assert (board.seq, list(board.on_air)) == (3, ["Lineup"])
    board.apply(_event(4, "Lineup#hide"))
    assert list(board.on_air) == []


async def test_view_shows_figures_events_and_what_to_try() -> None:
    console = Console(width=120, record=True, force_terminal=True, file=io.StringIO())
    asked = _event(2, "Poll#show", title="Who wins?", options=["Home", "Away"], measureName="winner")
    told = {asked.id: {0: 1, 1: 3}}
    board = view.Board(results=told)
    board.apply(_event(1, "Goal#show", player="Ada Abel"))
    board.apply(asked)
    async with AsyncClient("http://demo.localhost:8123") as client:
        audience = Crowd(client, "final", 3, Cursor("e", 0), SystemClock())
        audience.meter.count(12.0)
        audience.meter.tick()
        console.print(view.render(await _stage(), board, audience))
        line = view.line(board, audience)
    text = console.export_text()
    for part in (
        "Goal#show",
        "Who wins? (4 votes in all polls)",
        "Away  " + "█" * 30 + "  3",
        "player=Ada Abel",
        "0 of 3",
        "12 / 12 ms",
        "broker tail final",
        "curl http://localhost:8123",
    ):
        assert part in text
    assert line.endswith("votes 4  viewers 0/3  1 deliveries/s  p50 12 ms  p99 12 ms")


async def test_invitation_names_every_log_in() -> None:
    text = "\n".join(view.invitation(await _stage()))
    for name in ("admin", "producer", "user", "client"):
        assert f"{name} / demo-{name}" in text
    assert "http://localhost:8123/dashboard/" in text


async def test_invitation_names_the_overlay() -> None:
    text = "\n".join(view.invitation(await _stage()))
    assert "/overlay/?program=final&project=football" in text


def test_wanted_ports_are_taken_and_others_are_free() -> None:
    assert choose_ports(4, 5) == (4, 5)
    http, ws = choose_ports(None, None)
    assert http != ws
