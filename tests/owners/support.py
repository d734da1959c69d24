"""What the tests of the owners share: commands, programs in the database, and a gateway of lists."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import orjson

from broker.clock import SystemClock
from broker.domain.idempotency import IdempotencyKey
from broker.domain.programs import Program
from broker.errors import BrokerError
from broker.ids import IdSource
from broker.owners.commands import (
    Accepted,
    Command,
    CommandReply,
    DeleteEvent,
    DeleteEvents,
    Publish,
    UpdateEvent,
)
from broker.owners.owner import Owner
from broker.owners.protocol import Cursor, Entry, EntryKind, Head, NewEventRow, program_topic
from broker.owners.sessions import Follow, PollReply

ids = IdSource(SystemClock())


def row(event: str = "Score#update", metadata: dict[str, Any] | None = None, **times: int) -> NewEventRow:
    return NewEventRow(
        ids.uuid7(), times.get("timestamp"), times.get("timecode"), event, orjson.dumps(metadata or {})
    )


def publish_rows(program_id: str, rows: Sequence[NewEventRow]) -> Publish:
    """The command that appends these events."""
    return Publish(ids.uuid7(), "demo", program_id, tuple(rows), None)


def publish(
    program_id: str = "p", count: int = 1, *, key: str | None = None, body: str = "", account: str = "demo"
) -> Publish:
    claim = None if key is None else IdempotencyKey("alice", key, hashlib.sha256(body.encode()).digest())
    return Publish(ids.uuid7(), account, program_id, tuple(row() for _ in range(count)), claim)


def update(event_id: str, program_id: str = "p", **changes: object) -> UpdateEvent:
    return UpdateEvent(ids.uuid7(), "demo", program_id, event_id, changes)


def delete(event_id: str, program_id: str = "p") -> DeleteEvent:
    return DeleteEvent(ids.uuid7(), "demo", program_id, event_id)


def delete_all(program_id: str = "p") -> DeleteEvents:
    return DeleteEvents(ids.uuid7(), "demo", program_id)


def program(id_: str = "p", **fields: Any) -> Program:
    moment = "2026-01-01T00:00:00Z"
    known = {"id": id_, "name": id_, "created_time": moment, "updated_time": moment}
    return Program.model_validate(known | fields)


async def create_programs(dsn: str, names: Sequence[str], account: str = "demo") -> None:
    """As the operation does it: the program, its head, its row in the outbox."""
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            await connection.execute(
                "INSERT INTO accounts (name, created_time) VALUES ($1, now()) ON CONFLICT DO NOTHING", account
            )
            for name in names:
                uid = await connection.fetchval(
                    "INSERT INTO programs (account, id, name, access, created_time, updated_time)"
                    " VALUES ($1, $2, $2, 'public', now(), now()) RETURNING uid",
                    account,
                    name,
                )
                await connection.execute(
                    "INSERT INTO program_heads (program_uid, epoch, epoch_reason) VALUES ($1, $2, 'created')",
                    uid,
                    ids.epoch(),
                )
                await connection.execute(
                    "INSERT INTO program_changes (account, change, program, time)"
                    " VALUES ($1, 'created', $2, now())",
                    account,
                    program(name).model_dump_json(),
                )
    finally:
        await connection.close()


async def stage_import(dsn: str, import_id: str, count: int, *, given: Sequence[str] = ()) -> None:
    """Stage `count` events; the first have the `given` ids."""
    event_ids = [*given, *(ids.uuid7() for _ in range(len(given), count))]
    connection = await asyncpg.connect(dsn)
    try:
        history = await connection.fetchval(
            "INSERT INTO staged_imports (import_id, row_count, created_time) VALUES ($1, $2, now())"
            " RETURNING history",
            import_id,
            count,
        )
        await connection.executemany(
            "INSERT INTO events"
            " (history, seq, id, created_time, timestamp, timecode, event, metadata, imported)"
            " VALUES ($1, $2, $3, now(), $2, $2, 'Clock#set', '{}', true)",
            [(history, number, event_id) for number, event_id in enumerate(event_ids, 1)],
        )
    finally:
        await connection.close()


@asynccontextmanager
async def holding(dsn: str, statement: str, *values: object) -> AsyncIterator[asyncpg.Connection]:
    """Inside the block a transaction of somebody else's holds the locks that the statement takes.

    Gives its connection.
    """
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            await connection.execute(statement, *values)
            yield connection
    finally:
        await connection.close()


async def fetch(dsn: str, statement: str, *values: object) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(dsn)
    try:
        return list(await connection.fetch(statement, *values))
    finally:
        await connection.close()


async def ask(owner: Owner, command: Command, wait_s: float = 10.0) -> CommandReply:
    """The reply of one command; an error is raised."""
    (reply,) = await owner.submit([command], wait_s)
    if isinstance(reply, BrokerError):
        raise reply
    return reply


async def published(owner: Owner, command: Publish) -> list[dict[str, Any]]:
    reply = await ask(owner, command)
    assert isinstance(reply, Accepted)
    return [orjson.loads(event) for event in reply.events]


class Gateway:
    """Follows topics at one owner, keeps what it hears, and can lose answers or its session."""

    def __init__(self, owner: Owner, name: str = "gateway") -> None:
        self.owner = owner
        self.name = name
        self.ack = 0
        self.entries: dict[int, list[Entry]] = {}
        self.cursors: dict[int, Cursor] = {}

    async def open(self, *follows: Follow) -> list[Head]:
        self.ack = 0
        heads = await self.owner.open(self.name, follows)
        return self._begin(follows, heads)

    async def follow(self, number: int, program_id: str, cursor: Cursor | None = None) -> Head:
        follows = [Follow(number, program_topic("demo", program_id), cursor)]
        heads = await self.owner.follow(self.name, follows)
        assert heads is not None
        return self._begin(follows, heads)[0]

    def _begin(self, follows: Sequence[Follow], heads: Sequence[Any]) -> list[Head]:
        for follow, head in zip(follows, heads, strict=True):
            if isinstance(head, BrokerError):
                raise head
            self.entries.setdefault(follow.number, [])
            self.cursors[follow.number] = Cursor(head.epoch, head.seq)
        return list(heads)

    async def poll(self, wait_s: float = 5.0) -> bool:
        """Take one reply; false when the wait was over without news."""
        reply = await self.owner.poll(self.name, self.ack, wait_s)
        assert isinstance(reply, PollReply)
        for batch in reply.batches:
            self.entries[batch.number] += batch.entries
            self.cursors[batch.number] = Cursor(batch.epoch, batch.seq)
        self.ack = reply.number
        return bool(reply.batches)

    async def drain(self) -> None:
        while await self.poll(0.0):
            pass

    async def until(self, number: int, count: int) -> list[Entry]:
        async with asyncio.timeout(10):
            while len(self.told(number)) < count:
                await self.poll()
        return self.told(number)

    def told(self, number: int) -> list[Entry]:
        """What viewers would hear."""
        return [entry for entry in self.entries[number] if entry.kind != EntryKind.ATTRIBUTES]

    def seqs(self, number: int) -> list[int]:
        return [entry.seq for entry in self.told(number)]
