"""What the tests of answers share: programs, polls and the parts that count them, on a real database."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from broker.storage.answer_log import AnswerLog, PollWrite
from broker.storage.database import Database
from broker.storage.fence import connection_name
from tests.owners.support import create_programs

SLOT = "counter-0"
_MAKE_POLL = """
INSERT INTO answer_polls (program_uid, account, measure, context, shards)
SELECT uid, account, $2, $3, $4 FROM programs WHERE id = $1 RETURNING uid
"""
WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"


@asynccontextmanager
async def open_counter(dsn: str, slot: str = SLOT) -> AsyncIterator[tuple[AnswerLog, int]]:
    """A counter's log and its generation."""
    database = await Database.open(dsn, size=2, timeout_s=10, name=connection_name(slot))
    try:
        log = AnswerLog(database, slot)
        yield log, await log.acquire()
    finally:
        await database.close()


async def make_polls(dsn: str, *measures: str, program: str = "p", shards: int = 2) -> list[int]:
    """The uids of polls, one a measure, of a program that is made with them."""
    await create_programs(dsn, [program])
    connection = await asyncpg.connect(dsn)
    try:
        return [await connection.fetchval(_MAKE_POLL, program, name, "c", shards) for name in measures]
    finally:
        await connection.close()


def build_write(poll: int, number: int = 1, records: bytes = b"", shard: int = 0) -> PollWrite:
    """A write whose counts tell its number."""
    return PollWrite(poll, shard, number, records, [number, 0, 2], 10 + number, 20 + number, 30 + number)


async def until_waiting(dsn: str) -> None:
    """Until a statement waits for a lock."""
    connection = await asyncpg.connect(dsn)
    try:
        while not await connection.fetchval(WAITING):
            await connection.execute("SELECT pg_sleep(0.01)")
    finally:
        await connection.close()


async def fetch(dsn: str, statement: str, *values: object) -> list[tuple[Any, ...]]:
    connection = await asyncpg.connect(dsn)
    try:
        return [tuple(row) for row in await connection.fetch(statement, *values)]
    finally:
        await connection.close()
