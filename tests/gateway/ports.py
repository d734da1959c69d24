"""The ports of `FollowedTopics` in memory: logs with the rules of native ones, and a feed that obeys."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import orjson

from broker.errors import NotFound
from broker.owners.feed import HeadSeen, Sink
from broker.owners.protocol import Attributes, Cursor, Entry, EntryKind, Head, HistoryLost


def push(seq: int, epoch: str = "e1") -> Entry:
    params = orjson.dumps({"seq": seq, "epoch": epoch})
    return Entry(EntryKind.PUSH, epoch, seq, "event", params)


def gone(seq: int, epoch: str = "e1") -> Entry:
    return Entry(EntryKind.GONE, epoch, seq, "programDeleted", b"{}")


def attributes(*, public: bool, project_id: str | None, seq: int = 0) -> Entry:
    params = orjson.dumps({"public": public, "projectId": project_id})
    return Entry(EntryKind.ATTRIBUTES, "e1", seq, "", params)


@dataclass
class MemoryLog:
    epoch: str
    seq: int
    floor: int
    public: bool
    told: list[tuple[str, int]] = field(default_factory=list)
    subscribers: int = 0


@dataclass
class MemoryLogs:
    """Logs as the native server keeps them, without clients."""

    logs: dict[str, MemoryLog] = field(default_factory=dict)
    links: set[tuple[str, str]] = field(default_factory=set)
    allowed: dict[tuple[str, int], bool] = field(default_factory=dict)
    linked: dict[str, list[int]] = field(default_factory=dict)
    ended: list[MemoryLog] = field(default_factory=list)
    limit: int = 1_000_000

    def open_log(self, topic: str, epoch: str, seq: int, public: bool, message_id: str = "") -> None:
        self.logs.setdefault(topic, MemoryLog(epoch, seq, seq, public))

    def append(self, topic: str, entries: list[tuple[int, str, int, str, bytes]]) -> None:
        log = self.logs[topic]
        for kind, epoch, seq, method, _ in entries:
            if kind == EntryKind.PUSH:
                if seq <= log.seq:
                    continue
                if seq != log.seq + 1 or epoch != log.epoch:
                    raise ValueError(f"seq {seq} leaves a gap")
                log.seq = seq
                for linked, channel in self.links:
                    if linked == topic:
                        self.linked.setdefault(channel, []).append(seq)
            if kind == EntryKind.RESET:
                if epoch == log.epoch and seq <= log.seq:
                    continue
                log.epoch, log.seq, log.floor = epoch, seq, seq
            log.told.append((method, seq))
            if kind == EntryKind.GONE:
                self.ended.append(self.logs.pop(topic))
                return

    def backfill(self, topic: str, epoch: str, entries: list[tuple[int, str, int, str, bytes]]) -> None:
        log = self.logs[topic]
        older = [seq for _, _, seq, _, _ in entries if seq <= log.floor]
        assert epoch == log.epoch
        assert older == list(range(older[0], log.floor + 1))
        log.floor = max(older[0] - 1, log.seq - self.limit)

    def head(self, topic: str) -> tuple[str, int, int] | None:
        log = self.logs.get(topic)
        return None if log is None else (log.epoch, log.seq, log.floor)

    def newest_id(self, topic: str) -> str:
        return ""

    def close_log(self, topic: str) -> bool:
        if topic not in self.logs or self.logs[topic].subscribers:
            return False
        del self.logs[topic]
        return True

    def set_public(self, topic: str, public: bool) -> None:
        self.logs[topic].public = public

    def link(self, topic: str, channel_topic: str) -> None:
        self.links.add((topic, channel_topic))

    def unlink(self, topic: str, channel_topic: str) -> None:
        self.links.discard((topic, channel_topic))

    def allow(self, topic: str, reader: int, allowed: bool) -> None:
        self.allowed[topic, reader] = allowed


class MemoryFeed:
    """Topics with a head and a history; `tell` sends entries to the sink of who follows."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.heads: dict[str, Head] = {}
        self.followed: set[str] = set()
        self.asked: list[tuple[str, int, int]] = []
        self.calls: list[str] = []
        self.floor = 0
        self.gate: asyncio.Event | None = None

    def add(self, topic: str, seq: int = 0, *, public: bool = True, project_id: str | None = None) -> None:
        self.heads[topic] = Head("e1", seq, Attributes(public, project_id))

    def tell(self, topic: str, *entries: Entry) -> None:
        if topic in self.followed:
            self.sink(topic, entries)

    async def follow(self, topic: str, cursor: Cursor | None = None) -> Head:
        self.calls.append(f"follow {topic}")
        if topic not in self.heads:
            raise NotFound("there is no such topic")
        self.followed.add(topic)
        head = self.heads[topic]
        if self.gate is not None:
            await self.gate.wait()
        if cursor is not None and cursor.epoch != head.epoch:
            raise HistoryLost("the epoch is gone")
        return head

    async def unfollow(self, topic: str) -> None:
        self.calls.append(f"unfollow {topic}")
        self.followed.discard(topic)
        if self.gate is not None:
            await self.gate.wait()

    async def history(self, topic: str, epoch: str, after_seq: int, limit: int) -> list[Entry]:
        self.asked.append((topic, after_seq, limit))
        head = self.heads[topic]
        await asyncio.sleep(0)
        if epoch != head.epoch or after_seq < self.floor:
            raise HistoryLost("too old")
        return [push(seq) for seq in range(after_seq + 1, min(after_seq + limit, head.seq) + 1)]

    async def ask_heads(self, topics: Collection[str], seen: HeadSeen) -> None:
        for topic in topics:
            seen(topic, self.heads[topic])

    async def close(self) -> None:
        self.followed.clear()


async def settle(turns: int = 20) -> None:
    """Let everything that is ready run."""
    for _ in range(turns):
        await asyncio.sleep(0)


def sequence(entries: Sequence[tuple[str, int]]) -> list[int]:
    return [seq for _, seq in entries]
