"""What traces cost a publish over HTTP while they are off: all that the program then does for them.

    python -m bench traces [--runs N] [--quick]

Off, traces are some questions whether there is a tracer or a span, and fields that are empty. They take less
than the rounds of any load differ, so a round with them cannot be told from one without. Therefore each is
timed alone, in a loop less an empty loop, and the sum is set beside the CPU of a publish. That is one through
the HTTP door, the owner and PostgreSQL, with all but the database in one process, without ingress, sockets,
links, viewers and the log of requests: of the whole product the share is lower.

What is timed is written here once more. `STEPS` quotes the line of the program that each step stands for, and
a test finds it there.
"""

import argparse
import asyncio
import dataclasses
import statistics
import tempfile
import timeit
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import orjson
import uvloop
from rich.console import Console
from rich.table import Table

from bench.machine import describe_machine
from bench.output import open_console
from bench.owner import METADATA, find_pid, weigh
from broker.operations.context import Context
from broker.owners.commands import Publish, TracedPublish
from broker.owners.protocol import NewEventRow
from broker.rest.reply import Exchange
from broker.storage.embedded.server import EmbeddedPostgres
from tests.asgi import ask
from tests.product import Product, open_product

LIMIT_PERCENT = 1.0
IN_FLIGHT = 64
EVENTS = 6_000
LOOPS = 200_000
QUICK = 20
PATH = "/api/v1/programs/traced/events"


class Step(NamedTuple):
    """One thing that is done for traces while they are off.

    Attributes:
        file: below `python/broker`, with `line` in it.
        timed: the same, or as much as it.
        instead: what would be there without traces.
    """

    file: str
    line: str
    timed: str
    instead: str = "pass"


STEPS = (
    Step("rest/reply.py", "self.trace: Span | None = None", "exchange.trace = None"),
    Step(
        "rest/app.py",
        "if self._traces is not None and operation.is_traced and not principal.is_anonymous:",
        "if door._traces is not None: pass",
    ),
    Step(
        "rest/app.py",
        "trace=None if exchange.trace is None else exchange.trace.context,",
        "x = None if exchange.trace is None else exchange.trace.context",
    ),
    Step(
        "operations/context.py",
        "trace: str | None = None",
        "Context(None, None, '', trace=None)",
        "ContextWithout(None, None, '')",
    ),
    Step("resources/events.py", "if context.trace is not None:", "if context.trace is not None: pass"),
    Step("owners/commands.py", "trace: str | None = None", "read_traced(sent)", "read(sent)"),
    Step(
        "owners/owner.py",
        "traced = None if self._tracer is None else TracedCommands(mine, self._tracer, self._slot)",
        "traced = None if door._traces is None else door",
    ),
    Step(
        "owners/owner.py",
        "call = self._writer.submit(mine if traced is None else traced.commands, wait_s)",
        "x = sent if no_span is None else door",
        "x = sent",
    ),
    Step("owners/owner.py", "if traced is not None:", "if no_span is not None: pass"),
    Step(
        "owners/sequencer.py",
        "if isinstance(command, TracedPublish) and command.trace is not None:",
        "if isinstance(command, TracedPublish) and command.trace is not None: pass",
    ),
    Step("owners/linked_feed.py", "if self._hand_overs is None:", "if door._traces is None: pass"),
    Step("rest/access_log.py", "exchange.trace_id,", "log(trace_id=exchange.trace_id)", "log()"),
    Step("rest/access_log.py", "if request.trace_id is not None:", "if no_span is not None: pass"),
    Step("rest/door.py", "if exchange.trace is not None:", "if exchange.trace is not None: pass"),
)


def main(words: Sequence[str]) -> int:
    """Measure and print the table; 1 when traces cost as much as `LIMIT_PERCENT` of a publish."""
    parser = argparse.ArgumentParser(prog="python -m bench traces", description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one short run: does it work, not how fast")
    arguments = parser.parse_args(words)
    runs, part = (1, QUICK) if arguments.quick else (arguments.runs, 1)
    console = open_console()
    console.print(", ".join(f"{name} {value}" for name, value in describe_machine().items()))
    publish_us, rounds = [], []
    for _ in range(runs):
        publish_us.append(uvloop.run(measure_publish(EVENTS // part)))
        rounds.append(measure_steps(LOOPS // part))
    step_ns = [statistics.median(each) for each in zip(*rounds, strict=True)]
    return report(console, step_ns, statistics.median(publish_us), runs)


def measure_steps(loops: int) -> list[float]:
    """Nanoseconds of each step, less those of what would be there without traces; never below zero."""
    known = _stage()
    setup = "; ".join(f"{name} = known[{name!r}]" for name in known)  # local names, as in a function
    taken = []
    for step in STEPS:
        timed, instead = (
            min(timeit.repeat(text, setup, number=loops, globals={"known": known}))
            for text in (step.timed, step.instead)
        )
        taken.append(max(0.0, timed - instead) / loops * 1e9)
    return taken


async def measure_publish(events: int) -> float:
    """CPU of a publish of one event, in µs: of the product in this process, and of its PostgreSQL."""
    with tempfile.TemporaryDirectory(prefix="broker-bench-") as name:
        server = EmbeddedPostgres(Path(name))
        await server.start()
        try:
            async with open_product(server.dsn) as product:
                await product.make_program("traced")
                await publish_many(product, events // 10)  # warm
                figures = await weigh(lambda: publish_many(product, events), events, find_pid(Path(name)))
                return figures.owner_us + figures.postgres_us
        finally:
            await server.stop()


async def publish_many(product: Product, events: int) -> None:
    """Publish, `IN_FLIGHT` at a time."""
    body = orjson.dumps({"event": "Score#update", "metadata": orjson.loads(METADATA)})
    left = iter(range(events))

    async def publish() -> None:
        for _ in left:
            told = await ask(product.app, "POST", PATH, body, token=product.tokens["admin"])
            assert told.status == 201, told.body

    await asyncio.gather(*(publish() for _ in range(IN_FLIGHT)))


def report(console: Console, step_ns: Sequence[float], publish_us: float, runs: int) -> int:
    """Print what there is to say; returns the exit status."""
    table = Table(title=f"Traces that are off, medians of {runs} runs", title_justify="left")
    table.add_column("file")
    table.add_column("line", overflow="fold")
    table.add_column("ns", justify="right")
    for step, taken_ns in zip(STEPS, step_ns, strict=True):
        table.add_row(step.file, step.line, f"{taken_ns:.0f}")
    console.print(table)
    share = percent(step_ns, publish_us)
    console.print(f"{sum(step_ns):.0f} ns of {publish_us:.1f} µs CPU of a publish: {share:.2f} %")
    return int(share >= LIMIT_PERCENT)


def percent(step_ns: Sequence[float], publish_us: float) -> float:
    """What all steps take of a publish."""
    return sum(step_ns) / (publish_us * 1e3) * 100


def _stage() -> dict[str, Any]:
    """What the steps work on, as a publish that is not traced has it."""
    nothing: Any = None
    command = Publish(
        "id", "demo", "traced", (NewEventRow("id", None, None, "Score#update", METADATA),), None
    )
    own = [(each.name, each.type, each) for each in dataclasses.fields(Context) if each.name != "trace"]
    return {
        "door": _Door(),
        "exchange": Exchange(nothing, nothing, "id", is_head=False),
        "no_span": None,
        "context": Context(nothing, nothing, "id"),
        "Context": Context,
        "ContextWithout": dataclasses.make_dataclass("ContextWithout", own, slots=True),
        "command": TracedPublish("id", "demo", "traced", command.events, None),
        "TracedPublish": TracedPublish,
        "sent": msgspec.msgpack.encode(command),
        "read": msgspec.msgpack.Decoder(Publish).decode,
        "read_traced": msgspec.msgpack.Decoder(TracedPublish).decode,
        "log": _log,
    }


class _Door:
    """Has no traces."""

    def __init__(self) -> None:
        self._traces = None


def _log(*, trace_id: str | None = None) -> None:
    """Take what the log of requests takes for traces."""
