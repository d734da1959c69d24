"""`broker top`."""

import asyncio
import math
import time
from dataclasses import asdict
from typing import Annotated

import httpx
import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from broker.cli.fleet import NodeFigures, Reading, SlotFigures, list_nodes, list_slots, read
from broker.cli.output import write_json
from broker.cli.remote import JsonOption
from broker.settings import Settings

_ANSWER_S = 5.0
_LATE_S = 0.1  # a loop that is later has too much to do
_MIB = 1 << 20


def top(
    urls: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[URL]…", help="The operators' address of each node; by default this machine's."
        ),
    ] = None,
    every: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.5, max=60)] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look twice, show the figures, and end.")] = False,
    json: JsonOption = False,
) -> None:
    """Watch the fleet: viewers, rates and lags of each node, and its owners and counters.

    Exits with 1 if no node answers.
    """
    settings = Settings.load()
    urls = urls or [f"http://{_host(settings)}:{settings.operations_port}"]
    reading = asyncio.run(_watch(urls, every, is_once=once, is_json=json))
    if not reading.samples:
        for url, reason in reading.failed.items():
            typer.echo(f"{url}: {reason}", err=True)
        raise typer.Exit(1)


def _host(settings: Settings) -> str:
    return "127.0.0.1" if settings.ops_host in ("localhost", "node", "0.0.0.0", "::") else settings.ops_host  # noqa: S104


async def _watch(urls: list[str], every_s: float, *, is_once: bool, is_json: bool) -> Reading:
    """Look until it is interrupted, or twice; the last reading."""
    async with httpx.AsyncClient(timeout=_ANSWER_S, trust_env=False) as web:
        before, now = None, await _read(web, urls)
        if is_once or is_json:
            while True:
                await asyncio.sleep(every_s)
                before, now = now, await _read(web, urls)
                if is_json:
                    write_json(_wire(now, before))
                else:
                    Console().print(_render(now, before))
                if is_once:
                    return now
        with Live(_render(now, before), auto_refresh=False, screen=True) as screen:
            while True:
                await asyncio.sleep(every_s)
                before, now = now, await _read(web, urls)
                screen.update(_render(now, before), refresh=True)


async def _read(web: httpx.AsyncClient, urls: list[str]) -> Reading:
    pages, failed = {}, {}

    async def fetch(url: str) -> None:
        try:
            reply = await web.get(f"{url.rstrip('/')}/metrics")
            reply.raise_for_status()
        except httpx.HTTPError as error:
            failed[url] = str(error) or type(error).__name__
        else:
            pages[url] = reply.text

    await asyncio.gather(*(fetch(url) for url in urls))
    return read(pages, failed, time.monotonic())


def _wire(now: Reading, before: Reading | None) -> dict[str, object]:
    return {
        "nodes": [asdict(each) for each in list_nodes(now, before)],
        "slots": [asdict(each) for each in list_slots(now, before)],
        "failed": dict(now.failed),
    }


def _render(now: Reading, before: Reading | None) -> Group:
    nodes, slots = list_nodes(now, before), list_slots(now, before)
    whole = f"{len(nodes)} nodes, {sum(each.viewers for each in nodes):,} viewers"
    failed = [Text(f"{url}: {reason}", style="red") for url, reason in now.failed.items()]
    silent = [
        Text(f"{each.node}: {name} does not answer", style="red") for each in nodes for name in each.silent
    ]
    return Group(
        Text(whole, style="bold"), *_maintenance(nodes), *failed, *silent, _nodes(nodes), _slots(slots)
    )


def _maintenance(nodes: list[NodeFigures]) -> list[Text]:
    """A line while changes are refused, by all processes or by the first."""
    refusing = sum(each.refusing for each in nodes)
    if not refusing:
        return []
    doors = sum(each.doors for each in nodes)
    return [Text(f"maintenance is on: {refusing} of {doors} processes refuse changes", style="yellow")]


def _nodes(nodes: list[NodeFigures]) -> Table:
    table = _table("node", "viewers", "joins/s", "sent/s", "p99", "lag", "in/s", "refused/s", "CPU", "MiB")
    for each in nodes:
        table.add_row(
            each.node,
            f"{each.viewers:,}",
            _rate(each.joins),
            _rate(each.deliveries),
            _time(each.delay_p99_s),
            _lag(each.loop_lag_s),
            _rate(each.messages),
            _rate(each.refused),
            _share(each.cpu),
            f"{each.memory_bytes // _MIB:,}",
        )
    return table


def _slots(slots: list[SlotFigures]) -> Table:
    table = _table("slot", "node", "programs", "gateways", "changes/s", "p99", "waiting", "lag", "CPU")
    for each in slots:
        table.add_row(
            each.slot,
            f"{each.node} {each.pid}",
            f"{each.topics:,}",
            f"{each.followers:,}",
            _rate(each.changes),
            _time(each.write_p99_s),
            f"{each.waiting:,}",
            _lag(each.lag_s),
            _share(each.cpu),
        )
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _time(value_s: float | None) -> str:
    if value_s is None:
        return ""
    if math.isinf(value_s):
        return "long"
    return f"≤ {value_s:g} s" if value_s >= 1 else f"≤ {value_s * 1000:g} ms"


def _lag(value_s: float) -> Text:
    return Text(f"{value_s * 1000:.0f} ms", style="red" if value_s >= _LATE_S else "")


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"
