"""What a durable publish costs at its owner: one process with an owner, a PostgreSQL, no Ray and no door.

    python -m bench owner [--runs N] [--quick]

Publishers wait for each answer before they publish again, so `in flight` is how many there are. CPU is that
of this process and of all of the server's, from `/proc/…/schedstat`, an event. A sampling clock tells which
part of the program this process was in. `statement alone` sends the statement that writes a group, with
columns made beforehand and nothing around it: the floor.
"""

import argparse
import asyncio
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import asyncpg
import uvloop
from rich.console import Console
from rich.table import Table

from bench.machine import describe_machine
from broker.clock import SystemClock
from broker.domain.history import EventRow, HeadMove, HeadRow, Writes
from broker.errors import BrokerError
from broker.ids import IdSource
from broker.owners.commands import Publish
from broker.owners.owner import Owner
from broker.owners.protocol import NewEventRow
from broker.settings import Settings
from broker.storage.appending import APPEND, append_columns
from broker.storage.embedded.server import EmbeddedPostgres
from broker.storage.migrations import migrate

METADATA = b'{"home":2,"away":1,"period":"second","clock":"61:24","scorers":["Kane","Saka"]}'
IN_FLIGHT = (1, 16, 64, 256)
BATCH = 100
EVENTS = {1: 20_000, BATCH: 100_000}
"""A run's events, by the events of one publish; fewer where commits are small."""
QUICK = 20
GROUP = 100
SAMPLE_S = 0.001
NOON_MS = 1_767_268_800_000
PARTS = (
    ("bench/owner.py", "publishers"),
    ("/owners/encoding.py", "encode"),
    ("/owners/sequencer.py", "plan"),
    ("/storage/journal.py", "journal"),
    ("/storage/appending.py", "journal"),
    ("/asyncpg/", "asyncpg"),
    ("/storage/", "database"),
    ("/owners/", "writer"),
)
"""The innermost frame in a file of this name says where a sample belongs."""
NATIVE = "loop, driver"
"""What has no frame of these: the event loop and what it calls natively."""

ids = IdSource(SystemClock())


@dataclass(frozen=True, slots=True)
class Figures:
    """One run: events a second, and CPU in µs an event; `parts` are shares of `owner_us`."""

    per_s: float
    owner_us: float
    postgres_us: float
    parts: dict[str, float]


def main(words: Sequence[str]) -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench owner", description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one short run: does it work, not how fast")
    arguments = parser.parse_args(words)
    runs, part = (1, QUICK) if arguments.quick else (arguments.runs, 1)
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(", ".join(f"{name} {value}" for name, value in describe_machine().items()))
    console.print(build_table(uvloop.run(measure(runs, part)), runs))
    return 0


async def measure(runs: int, part: int) -> dict[str, list[Figures]]:
    """Name of what was done → its figures, run by run; a run takes each in turn."""
    gathered: dict[str, list[Figures]] = {}
    async with running() as (dsn, server_pid):
        for _ in range(runs):
            figures = await measure_statement(dsn, server_pid, EVENTS[BATCH] // part)
            gathered.setdefault(f"statement alone, {GROUP} events", []).append(figures)
            for batch in (1, BATCH):
                for in_flight in IN_FLIGHT:
                    events = min(EVENTS[batch], 2_000 * batch * in_flight) // part
                    figures = await measure_owner(dsn, server_pid, batch, in_flight, events)
                    name = f"{'single' if batch == 1 else f'batches of {batch}'}, {in_flight} in flight"
                    gathered.setdefault(name, []).append(figures)
    return gathered


@asynccontextmanager
async def running() -> AsyncIterator[tuple[str, int]]:
    """A fresh PostgreSQL with our schema and a program; yields its DSN and the pid of its first process."""
    with tempfile.TemporaryDirectory(prefix="broker-bench-") as name:
        server = EmbeddedPostgres(Path(name))
        await server.start()
        try:
            await migrate(server.dsn)
            await make_program(server.dsn)
            yield server.dsn, find_pid(Path(name))
        finally:
            await server.stop()


def find_pid(root: Path) -> int:
    """The first process of the server in `root`."""
    return int(next(root.rglob("postmaster.pid")).read_text().split()[0])


async def make_program(dsn: str) -> None:
    """The program that everything is published to."""
    connection = await asyncpg.connect(dsn)
    await connection.execute("INSERT INTO accounts (name, created_time) VALUES ('bench', now())")
    await connection.execute(
        "INSERT INTO programs (account, id, name, access, created_time, updated_time)"
        " VALUES ('bench', 'p', 'p', 'public', now(), now())"
    )
    await connection.execute(
        "INSERT INTO program_heads (program_uid, epoch, epoch_reason)"
        " SELECT uid, $1, 'created' FROM programs",
        ids.epoch(),
    )
    await connection.close()


async def measure_owner(dsn: str, server_pid: int, batch: int, in_flight: int, events: int) -> Figures:
    """Publish `events` events, `batch` at a time, by `in_flight` publishers."""
    owner = await Owner.start(Settings(), dsn, 0)
    try:
        commands = iter([new_command(batch) for _ in range(events // batch)])

        async def publish() -> None:
            for command in commands:
                (answer,) = await owner.submit([command], 60)
                if isinstance(answer, BrokerError):
                    raise answer

        async def everybody() -> None:
            await asyncio.gather(*(publish() for _ in range(in_flight)))

        return await weigh(everybody, events, server_pid)
    finally:
        await owner.close()


def new_command(batch: int) -> Publish:
    """A publish of `batch` events of ordinary size."""
    rows = tuple(NewEventRow(ids.uuid7(), None, None, "Score#update", METADATA) for _ in range(batch))
    return Publish(ids.uuid7(), "bench", "p", rows, None)


async def measure_statement(dsn: str, server_pid: int, events: int) -> Figures:
    """Commit groups of prebuilt columns, each in one round trip."""
    connection = await asyncpg.connect(dsn)
    uid, history, epoch, seq = await connection.fetchrow(
        "SELECT program_uid, history, epoch, seq FROM program_heads"
    )
    generation = await connection.fetchval(
        "INSERT INTO owner_slots VALUES ('floor', 1)"
        " ON CONFLICT (slot) DO UPDATE SET generation = 1 RETURNING generation"
    )
    groups = []
    for known in range(seq, seq + events, GROUP):
        head = HeadRow(uid, history, epoch, "created", 0, 0, known, None, True, None, None)
        writes = Writes()
        writes.moves[uid] = HeadMove(uid, epoch, "created", 0, 0, known + GROUP, NOON_MS)
        for number in range(known + 1, known + GROUP + 1):
            row = EventRow(number, ids.uuid7(), NOON_MS, NOON_MS, NOON_MS, "Score#update", METADATA)
            writes.events[history, row.id] = row
        groups.append(append_columns(writes, [head]))

    async def commit_all() -> None:
        for columns in groups:
            await connection.execute(APPEND, "floor", generation, *columns)

    try:
        return await weigh(commit_all, events, server_pid)
    finally:
        await connection.close()


async def weigh(work: Callable[[], Awaitable[None]], events: int, server_pid: int) -> Figures:
    """Do the work and say what it took."""
    with sampling() as samples:
        server_s, own_s, began_s = cpu_s(server_pid), time.process_time(), time.perf_counter()
        await work()
        took_s, own_s = time.perf_counter() - began_s, time.process_time() - own_s
        server_s = cpu_s(server_pid) - server_s
    total = max(1, samples.total())
    shares = {name: count / total for name, count in samples.items()}
    return Figures(events / took_s, own_s / events * 1e6, server_s / events * 1e6, shares)


@contextmanager
def sampling() -> Iterator[Counter[str]]:
    """Count, for every millisecond of this process' CPU time, which part it was in."""
    samples: Counter[str] = Counter()

    def take(_signal: int, frame: FrameType | None) -> None:
        samples[part_of(frame)] += 1

    before = signal.signal(signal.SIGPROF, take)
    signal.setitimer(signal.ITIMER_PROF, SAMPLE_S, SAMPLE_S)
    try:
        yield samples
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def part_of(frame: FrameType | None) -> str:
    """The part that a stack is in."""
    while frame is not None:
        for place, part in PARTS:
            if place in frame.f_code.co_filename:
                return part
        frame = frame.f_back
    return NATIVE


def cpu_s(server_pid: int) -> float:
    """CPU seconds of a process and its children; a backend lives as long as its connection."""
    children = Path(f"/proc/{server_pid}/task/{server_pid}/children").read_text().split()
    return (
        sum(
            int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in [str(server_pid), *children]
        )
        / 1e9
    )


def build_table(gathered: dict[str, list[Figures]], runs: int) -> Table:
    """Medians, a line for each way to publish."""
    table = Table(title=f"CPU µs an event, medians of {runs} runs", title_justify="left")
    table.add_column("published", no_wrap=True)
    parts = [*dict.fromkeys(part for _, part in PARTS), NATIVE]
    for name in ("events/s", "owner", "server", *parts):
        table.add_column(name, justify="right")
    for name, figures in gathered.items():
        owner_us = statistics.median(one.owner_us for one in figures)
        cells = [
            f"{statistics.median(one.per_s for one in figures):,.0f}",
            f"{owner_us:.1f}",
            f"{statistics.median(one.postgres_us for one in figures):.1f}",
        ]
        for part in parts:
            share = statistics.median(one.parts.get(part, 0.0) for one in figures)
            cells.append(f"{share * owner_us:.1f}")
        table.add_row(name, *cells)
    return table
