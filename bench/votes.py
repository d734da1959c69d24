"""What a vote costs at its counter: one process with a counter, a PostgreSQL, no Ray and no sender.

    python -m bench votes [--runs N] [--quick]

Senders send batches, each the next one when the last is answered, so what is answered is exact and durable.
CPU is that of this process and of all of the server's, a vote; `a core` is how many votes a second one core
counts and stores, both together. `PostgreSQL alone` has the database find the repeats by a primary key and
count: the way without a counter. Memory is what a tally says that it holds, beside what this process grew by.
"""

import argparse
import asyncio
import os
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

import asyncpg
import uvloop
from rich.console import Console
from rich.table import Table

from bench.child import read_private_bytes
from bench.machine import describe_machine
from bench.owner import cpu_s, running
from broker._native import Tally, pack_answer
from broker.settings import Settings
from broker.voting.counting.batches import Group, VoteBatch
from broker.voting.counting.counter import Counter

OPTIONS = 4
SENDERS = 16
BATCHES = {1: 40_000, 100: 400_000, 1_000: 1_000_000, 10_000: 2_000_000}
"""Votes of a run, by the votes of one batch; fewer where batches are small."""
ALONE = (500, 5_000)
ALONE_VOTES = 500_000
REPEATED = 1_000
VOTERS = 1_000_000
QUICK = 20
SLOT = "counter-0"

_DEDUPLICATE = """
WITH new AS (
    INSERT INTO votes_alone SELECT * FROM unnest($1::bigint[], $2::smallint[]) ON CONFLICT DO NOTHING
    RETURNING choice
)
INSERT INTO counts_alone SELECT choice, count(*) FROM new GROUP BY choice
ON CONFLICT (choice) DO UPDATE SET total = counts_alone.total + excluded.total
"""


@dataclass(frozen=True, slots=True)
class Figures:
    """One run: votes a second, and CPU in µs a vote."""

    per_s: float
    own_us: float
    server_us: float

    @property
    def per_core_s(self) -> float:
        """Votes a second that one core counts and stores."""
        return 1e6 / (self.own_us + self.server_us)


def main(words: Sequence[str]) -> int:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench votes", description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one short run: does it work, not how fast")
    arguments = parser.parse_args(words)
    runs, part = (1, QUICK) if arguments.quick else (arguments.runs, 1)
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(", ".join(f"{name} {value}" for name, value in describe_machine().items()))
    says, grew = measure_memory(VOTERS // part)  # first, while this process has nothing to use again
    console.print(build_table(uvloop.run(measure(runs, part)), runs))
    console.print(f"{VOTERS // part:,} voters: at most {says:.1f} bytes each; the process grew by {grew:.1f}")
    return 0


async def measure(runs: int, part: int) -> dict[str, list[Figures]]:
    """Name of what was done → its figures, run by run; a run takes each in turn."""
    gathered: dict[str, list[Figures]] = {}
    async with running() as (dsn, server_pid):
        await make_tables(dsn)
        for run in range(runs):
            for batch in ALONE:
                figures = await measure_alone(dsn, server_pid, batch, ALONE_VOTES // part)
                gathered.setdefault(f"PostgreSQL alone, batches of {batch:,}", []).append(figures)
            for batch, votes in BATCHES.items():
                name = "single votes" if batch == 1 else f"batches of {batch:,}"
                first, again = await measure_counter(dsn, server_pid, f"{run}/{batch}", batch, votes // part)
                gathered.setdefault(f"counter, {name}", []).append(first)
                if batch == REPEATED:
                    gathered.setdefault(f"counter, {name}, all repeats", []).append(again)
    return gathered


async def make_tables(dsn: str) -> None:
    """What the way without a counter needs."""
    connection = await asyncpg.connect(dsn)
    await connection.execute("CREATE TABLE votes_alone (voter bigint PRIMARY KEY, choice smallint NOT NULL)")
    await connection.execute("CREATE TABLE counts_alone (choice smallint PRIMARY KEY, total bigint NOT NULL)")
    await connection.close()


async def measure_alone(dsn: str, server_pid: int, batch: int, votes: int) -> Figures:
    """The database finds repeats and counts, a batch a transaction."""
    connection = await asyncpg.connect(dsn)
    await connection.execute("TRUNCATE votes_alone, counts_alone")
    statement = await connection.prepare(_DEDUPLICATE)
    batches = [
        ([random.getrandbits(63) for _ in range(batch)], [random.randrange(OPTIONS) for _ in range(batch)])
        for _ in range(votes // batch)
    ]

    async def commit_all() -> None:
        for voters, choices in batches:
            await statement.fetch(voters, choices)

    try:
        return await weigh(commit_all, votes, server_pid)
    finally:
        await connection.close()


async def measure_counter(
    dsn: str, server_pid: int, context: str, batch: int, votes: int
) -> tuple[Figures, Figures]:
    """Votes of as many voters, `batch` at a time, by `SENDERS` senders; then the same again."""
    connection = await asyncpg.connect(dsn)
    poll = await connection.fetchval(
        "INSERT INTO answer_polls (program_uid, account, measure, context, shards, created_time)"
        " SELECT uid, account, 'winner', $1, 1, now() FROM programs RETURNING uid",
        context,
    )
    counter = await Counter.start(Settings(), dsn, SLOT)
    try:
        figures = []
        batches = [build_records(poll, start, batch) for start in range(0, votes, batch)]
        for turn in range(2):
            work = sending(counter, poll, batches, turn)
            figures.append(await weigh(work, len(batches) * batch, server_pid))
        counted = await connection.fetchval("SELECT totals FROM answer_tallies WHERE poll = $1", poll)
        if sum(counted) != len(batches) * batch:
            raise RuntimeError(f"{sum(counted)} of {len(batches) * batch} votes were counted")
        return figures[0], figures[1]
    finally:
        await counter.close()
        await connection.close()


def sending(counter: Counter, poll: int, batches: list[bytes], turn: int) -> Callable[[], Awaitable[None]]:
    """Work that sends all batches by `SENDERS` senders, each one after the other."""
    left = iter(batches)

    async def send(sender: str) -> None:
        for number, records in enumerate(left, 1):
            batch = VoteBatch(sender, number, (Group(poll, 0, allow_change=False, records=records),))
            answer = await counter.submit(batch, 60)
            if not isinstance(answer, tuple):
                raise answer

    async def everybody() -> None:
        await asyncio.gather(*(send(f"{poll}-{turn}-{index}") for index in range(SENDERS)))

    return everybody


def build_records(poll: int, start: int, count: int) -> bytes:
    """The records of `count` voters, each of whom chooses one option."""
    key = bytes(16)
    return b"".join(
        pack_answer(key, poll, f"visitor-{number}", [number % OPTIONS])
        for number in range(start, start + count)
    )


async def weigh(work: Callable[[], Awaitable[None]], votes: int, server_pid: int) -> Figures:
    """Do the work and say what it took."""
    server_s, own_s, began_s = cpu_s(server_pid), time.process_time(), time.perf_counter()
    await work()
    took_s, own_s = time.perf_counter() - began_s, time.process_time() - own_s
    server_s = cpu_s(server_pid) - server_s
    return Figures(votes / took_s, own_s / votes * 1e6, server_s / votes * 1e6)


def measure_memory(voters: int) -> tuple[float, float]:
    """Bytes a voter: the most that a tally said while it grew from a tenth, and what this process grew by."""
    tally, most = Tally(), 0.0
    before = read_private_bytes(os.getpid())
    for records in _voters(voters):
        tally.apply(records, allow_change=False)
        if tally.voters >= voters // 10:
            most = max(most, tally.memory_bytes / tally.voters)
    return most, (read_private_bytes(os.getpid()) - before) / voters


def _voters(voters: int) -> Iterator[bytes]:
    for start in range(0, voters, 1_000):
        yield build_records(1, start, 1_000)


def build_table(gathered: dict[str, list[Figures]], runs: int) -> Table:
    """Medians, a line for each way to count."""
    table = Table(title=f"CPU µs a vote, medians of {runs} runs", title_justify="left")
    table.add_column("counted by", no_wrap=True)
    for name in ("votes/s", "counter", "server", "votes/s a core"):
        table.add_column(name, justify="right")
    for name, figures in gathered.items():
        table.add_row(
            name,
            f"{statistics.median(one.per_s for one in figures):,.0f}",
            f"{statistics.median(one.own_us for one in figures):.2f}",
            f"{statistics.median(one.server_us for one in figures):.2f}",
            f"{statistics.median(one.per_core_s for one in figures):,.0f}",
        )
    return table
