"""The display of the demonstration: a live view on a terminal, one plain line per second elsewhere."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.align import Align
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from broker.client import Event
from broker.demo.audience import Crowd
from broker.demo.cast import LOGINS, PROGRAM_ID, PROJECT_ID
from broker.demo.figures import percentile, sparkline
from broker.demo.script import POLL
from broker.demo.stage import Stage

_LAST = 10
_GRAPH_S = 60
_LONG = {
    "players",
    "options",
    "opens",
    "closes",
    "photo",
    "portrait",
}  # of an event, what its line leaves out
_BAR = 30  # characters of a poll's longest bar
_READER = LOGINS[2]  # the user, who may read the project's answers


@dataclass
class Board:
    """The state of the program as the graphics would show it, made from events and live results alone.

    Attributes:
        results: answers by option of each poll, by its event's id.
        poll: the latest event that asked something.
        portrait: URL of the image of the latest player, as an overlay shows it.
    """

    results: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    poll: Event | None = None
    portrait: str = ""
    score: dict[str, Any] = field(default_factory=dict)
    clock: str = "--:--"
    on_air: dict[str, None] = field(default_factory=dict)
    last: deque[Event] = field(default_factory=lambda: deque(maxlen=_LAST))
    seq: int = 0

    def apply(self, event: Event) -> None:
        """Take the next event; events of parallel producers may be told out of order."""
        component, _, action = event.event.partition("#")
        if component == "Score" and event.metadata:
            self.score = event.metadata
        if event.event == POLL:
            self.poll = event
        self.portrait = event.metadata.get("portrait", self.portrait)
        if "clock" in event.metadata:
            self.clock = str(event.metadata["clock"])
        if action == "show":
            self.on_air[component] = None
        elif action == "hide":
            self.on_air.pop(component, None)
        self.last.append(event)
        self.seq = max(self.seq, event.seq)

    @property
    def votes(self) -> int:
        """Answers to all polls, as the channel told them."""
        return sum(sum(counts.values()) for counts in self.results.values())

    def counts(self) -> list[tuple[str, int]]:
        """The options of the latest poll, each with its answers."""
        if self.poll is None:
            return []
        told = self.results.get(self.poll.id, {})
        options = enumerate(self.poll.metadata["options"])
        return [(str(label), told.get(index, 0)) for index, label in options]

    def headline(self) -> str:
        """`NOR 1 : 0 SOU   23:45`."""
        home, away = self.score.get("homeTeam", "---"), self.score.get("awayTeam", "---")
        return f"{home} {self.score.get('home', 0)} : {self.score.get('away', 0)} {away}   {self.clock}"


def invitation(stage: Stage) -> list[str]:
    """Where the product is, who may log in, and two lines to try, each of which works as it stands."""
    port = stage.http_port
    logins = ", ".join(f"{login.username} / {login.password}" for login in LOGINS)
    url = f"http://localhost:{port}"
    return [
        f"API        {url}/docs   (account demo: {stage.url})",
        f"dashboard  {url}/dashboard/",
        f"overlay    {stage.url}/overlay/?program={PROGRAM_ID}&project={PROJECT_ID}",
        f"WebSocket  ws://localhost:{stage.ws_port}/api/v1/ws",
        f"log-ins    {logins}",
        f"try        curl {url}/api/v1/programs/{PROGRAM_ID}/events",
        f"           .venv/bin/broker tail {PROGRAM_ID} --url {url}",
        f"           .venv/bin/broker results {PROGRAM_ID} --watch --url {url}"
        f" --username {_READER.username} --password {_READER.password}",
    ]


def render(stage: Stage, board: Board, audience: Crowd) -> RenderableType:
    """The live view."""
    score = Align.center(Text(board.headline(), style="bold white on dark_green"))
    tries = invitation(stage) + ([f"portrait   {board.portrait}"] if board.portrait else [])
    on_air = Align.center(Text("on air: " + (", ".join(board.on_air) or "nothing"), style="cyan"))
    return Group(
        Panel(Group(score, on_air), title="The Final", border_style="green"),
        _figures(board, audience),
        *_poll(board),
        Panel(_events(board), title="last events", border_style="blue"),
        Panel(Text("\n".join(tries)), title="try it", border_style="magenta"),
        Text("Ctrl-C ends the demonstration", style="dim"),
    )


def line(board: Board, audience: Crowd) -> str:
    """The same in one plain line."""
    p50, p99 = _percentiles(audience)
    return (
        f"seq {board.seq}  {board.headline()}  votes {board.votes}"
        f"  viewers {audience.connected}/{len(audience.viewers)}"
        f"  {audience.meter.rate} deliveries/s  p50 {p50:.0f} ms  p99 {p99:.0f} ms"
    )


def _figures(board: Board, audience: Crowd) -> RenderableType:
    p50, p99 = _percentiles(audience)
    table = Table.grid(expand=True, padding=(0, 2))
    for _ in range(5):
        table.add_column(justify="center")
    table.add_row(
        "sequence", "viewers", "deliveries/s", "publish→viewer p50 / p99", "deliveries in all", style="dim"
    )
    table.add_row(
        str(board.seq),
        f"{audience.connected} of {len(audience.viewers)}",
        f"{audience.meter.rate:,}",
        f"{p50:.0f} / {p99:.0f} ms",
        f"{audience.meter.total:,}",
        style="bold",
    )
    graph = Text(sparkline([*audience.meter.per_s][-_GRAPH_S:]), style="green")
    return Panel(Group(table, Align.center(graph)), title="live figures", border_style="yellow")


def _poll(board: Board) -> list[RenderableType]:
    """The latest poll, if there has been one."""
    if board.poll is None:
        return []
    counts = board.counts()
    most = max(count for _, count in counts) or 1
    table = Table.grid(padding=(0, 2))
    for label, count in counts:
        table.add_row(label, Text("█" * (count * _BAR // most), style="magenta"), f"{count:,}")
    title = f"{board.poll.metadata['title']} ({board.votes:,} votes in all polls)"
    return [Panel(table, title=title, border_style="cyan")]


def _events(board: Board) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", style="dim")
    table.add_column(style="bold")
    table.add_column(overflow="ellipsis", no_wrap=True)
    for event in sorted(board.last, key=lambda event: event.seq):
        details = "  ".join(f"{name}={value}" for name, value in event.metadata.items() if name not in _LONG)
        table.add_row(str(event.seq), event.event, details)
    return table


def _percentiles(audience: Crowd) -> tuple[float, float]:
    latencies = audience.meter.latencies_ms
    return percentile(latencies, 0.5), percentile(latencies, 0.99)
