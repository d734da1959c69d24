"""The topics that this gateway follows, and how pushes of owners get into the native logs.

A topic is *opening* from the first request for it until its owner has replied with its head, *open* while
entries flow from the feed into its native log, and removed as soon as the log is closed. Entries that arrive
while the topic is opening wait in a buffer, so that the log begins exactly at the head of the reply.

Opening is a single flight per topic. Closing is decided natively and at once: `close_log` refuses while the
log has a subscriber, so a subscriber that arrives at the last moment keeps the log. Only then does the
gateway stop following the topic at its owner, and a new opening of the same topic waits until that is done.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import orjson

from broker.concurrency.single_flight import SingleFlight
from broker.concurrency.tasks import cancel_and_wait, run_once
from broker.errors import BrokerError
from broker.owners.encoding import parse_attributes
from broker.owners.feed import Feed, HeadSeen
from broker.owners.protocol import Attributes, Cursor, Entry, EntryKind, Head, HistoryLost

if TYPE_CHECKING:  # a name of the stub alone
    from broker._native import Entry as NativeEntry

_log = logging.getLogger(__name__)


class Logs(Protocol):
    """The part of the native server that keeps topics' logs; see `broker._native.Server`."""

    def open_log(self, topic: str, epoch: str, seq: int, public: bool, message_id: str = "") -> None:
        """Make a log whose next push is `seq + 1`, after a message of this id."""

    def append(self, topic: str, entries: "list[NativeEntry]") -> None:
        """Add entries; a gap, or another push than the one that is there, raises ValueError."""

    def backfill(self, topic: str, epoch: str, entries: "list[NativeEntry]") -> None:
        """Put older pushes before the first one kept."""

    def head(self, topic: str) -> tuple[str, int, int] | None:
        """(epoch, newest seq, seq before the oldest one kept)."""

    def newest_id(self, topic: str) -> str:
        """The id of the newest push, empty where it is not known."""

    def close_log(self, topic: str) -> bool:
        """Drop a log; false when it has subscribers."""

    def set_public(self, topic: str, public: bool) -> None:
        """Change who may follow."""

    def link(self, topic: str, channel_topic: str) -> None:
        """Send pushes to a channel too."""

    def unlink(self, topic: str, channel_topic: str) -> None:
        """Undo `link`."""

    def allow(self, topic: str, reader: int, allowed: bool) -> None:
        """Remember whether a class of readers may follow."""


@dataclass(slots=True)
class Followed:
    """One topic that this gateway follows.

    Attributes:
        attributes: as the owner said last; None while opening.
        buffer: entries that came while opening; None afterwards.
        readers: reader classes that have been decided.
        pins: who else than a subscriber needs the topic, such as a channel linked to it.
    """

    topic: str
    attributes: Attributes | None = None
    buffer: list[Entry] | None = field(default_factory=list)
    readers: set[int] = field(default_factory=set)
    pins: set[str] = field(default_factory=set)

    @property
    def is_open(self) -> bool:
        """Whether the topic's log takes entries."""
        return self.attributes is not None


AttributesChanged = Callable[[Followed, Attributes, Attributes], None]
"""Hears of a topic's attributes (before, now) between the entries around the change; must not block."""

EntriesSeen = Callable[[Sequence[Entry]], None]
"""Hears the entries of one topic after they are in its log; must not block."""


class FollowedTopics:
    """All topics of one gateway. Owns the tasks that open, leave and repair them."""

    def __init__(self, logs: Logs, on_attributes: AttributesChanged) -> None:
        self._logs = logs
        self._on_attributes = on_attributes
        self._feed: Feed | None = None
        self._followed: dict[str, Followed] = {}
        self._watchers: dict[str, dict[str, EntriesSeen]] = {}
        self._opening: SingleFlight[str, Followed] = SingleFlight()
        self._leaving: SingleFlight[str, None] = SingleFlight()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def use(self, feed: Feed) -> None:
        """Follow by `feed`, whose sink is `take_entries`; called once, before anything is opened."""
        self._feed = feed

    def find(self, topic: str) -> Followed | None:
        """The topic when it is open."""
        followed = self._followed.get(topic)
        return followed if followed is not None and followed.is_open else None

    def watch(self, topic: str, name: str, seen: EntriesSeen) -> None:
        """Let `seen` hear the entries of `topic` from now on, in place of the watcher of this name."""
        self._watchers.setdefault(topic, {})[name] = seen

    def unwatch(self, topic: str, name: str) -> None:
        """Undo `watch`; an unknown watcher is ignored."""
        watchers = self._watchers.get(topic, {})
        watchers.pop(name, None)
        if not watchers:
            self._watchers.pop(topic, None)

    def position(self, followed: Followed) -> tuple[str, int] | None:
        """Up to which seq of which epoch the topic's log has everything; None when it is followed no more."""
        head = self._logs.head(followed.topic) if self.find(followed.topic) is followed else None
        return None if head is None else head[:2]

    async def ask_heads(self, followed: Collection[Followed], seen: HeadSeen) -> None:
        """Ask owners where these topics stand; see `Feed.ask_heads`."""
        assert self._feed is not None, "the gateway gives the feed before it starts"
        await self._feed.ask_heads([each.topic for each in followed], seen)

    async def open(self, topic: str, *, from_start: bool = False, pin: str | None = None) -> Followed:
        """Follow `topic` and open its log; at once when it is open.

        Args:
            from_start: begin the log before the first push of the epoch, where the owner still has it.
            pin: keep the topic open for this name until `unpin`.

        Raises:
            NotFound: there is no such topic.
            Unavailable: its owner cannot be reached in time.
        """
        followed = self.find(topic)
        if followed is None:
            followed = await self._opening.run(topic, lambda: self._open(topic, from_start))
        if pin is not None:
            followed.pins.add(pin)
        return followed

    def unpin(self, topic: str, pin: str) -> None:
        """Take a pin away; the topic is closed if that was all that held it."""
        followed = self._followed.get(topic)
        if followed is not None and pin in followed.pins:
            followed.pins.remove(pin)
            self.close_if_idle(topic)

    def close_if_idle(self, topic: str) -> bool:
        """Stop following `topic` unless it has a subscriber or a pin; true when it is followed no more."""
        followed = self._followed.get(topic)
        if followed is None:
            return False
        if followed.pins or not followed.is_open or not self._logs.close_log(topic):
            return False
        self._forget(followed)
        return True

    def take_entries(self, topic: str, entries: Sequence[Entry]) -> None:
        """The feed's sink: put the next entries of `topic` into its log."""
        followed = self._followed.get(topic)
        if followed is None:
            return  # said before the feed heard that nobody listens
        if followed.buffer is not None:
            followed.buffer.extend(entries)
            return
        try:
            self._apply(followed, entries)
        except ValueError as error:
            # The feed promises no gap, and no seq twice. If it breaks the promise, begin again where the log
            # stands.
            _log.error("topic_gap", extra={"topic": topic, "cause": str(error)})
            self._spawn(self._repair(followed))

    async def close(self) -> None:
        """End all tasks; the feed and the logs are closed by their owner. Idempotent."""
        self._closed = True
        await self._opening.close()
        await self._leaving.close()
        await cancel_and_wait(*self._tasks)
        self._followed.clear()

    async def _open(self, topic: str, from_start: bool) -> Followed:
        assert self._feed is not None, "the gateway gives the feed before it starts"
        await self._leaving.settled(topic)
        followed = Followed(topic)
        self._followed[topic] = followed
        try:
            head = await self._feed.follow(topic)
            early = await self._early(topic, head.epoch, head.seq) if from_start else []
        except BaseException:
            self._forget(followed)
            raise
        base = early[0].seq - 1 if early else head.seq
        id_ = head.id if base == head.seq else ""
        self._logs.open_log(topic, head.epoch, base, head.attributes.public, id_)
        followed.attributes = head.attributes
        waiting, followed.buffer = [*early, *(followed.buffer or ())], None
        # Linked channels must hear the early entries: `on_attributes` links before they are appended.
        self._on_attributes(followed, Attributes(head.attributes.public, None), head.attributes)
        self.take_entries(topic, waiting)
        return followed

    async def _early(self, topic: str, epoch: str, seq: int) -> list[Entry]:
        """The pushes of the epoch up to `seq` if all of them are available, otherwise none."""
        assert self._feed is not None, "the gateway gives the feed before it starts"
        if seq == 0:
            return []
        try:
            entries = await self._feed.history(topic, epoch, 0, seq)
        except HistoryLost:
            return []
        pushes = [entry for entry in entries if entry.kind == EntryKind.PUSH and entry.seq <= seq]
        return pushes if [push.seq for push in pushes] == list(range(1, seq + 1)) else []

    def _apply(self, followed: Followed, entries: Sequence[Entry]) -> None:
        """Append in order, with changes of attributes at their places between the others."""
        run: list[NativeEntry] = []
        for entry in entries:
            if entry.kind == EntryKind.ATTRIBUTES:
                self._append(followed.topic, run)
                run = []
                self._change_attributes(followed, entry.params)
                continue
            run.append(native_entry(entry))
            if entry.kind == EntryKind.GONE:
                break
        self._append(followed.topic, run)
        for seen in list(self._watchers.get(followed.topic, {}).values()):
            seen(entries)
        if run and run[-1][0] == EntryKind.GONE:
            self._end(followed)

    def _append(self, topic: str, run: "list[NativeEntry]") -> None:
        if run:
            self._logs.append(topic, run)

    def _change_attributes(self, followed: Followed, params: bytes) -> None:
        before, now = followed.attributes, parse_attributes(params)
        assert before is not None, "an open topic has attributes"
        followed.attributes = now
        if before.public != now.public:
            self._logs.set_public(followed.topic, now.public)
        self._on_attributes(followed, before, now)

    def _end(self, followed: Followed) -> None:
        """The program is gone; native code keeps the ended log for those who read it still, and no longer."""
        assert followed.attributes is not None, "an open topic has attributes"
        self._on_attributes(followed, followed.attributes, Attributes(followed.attributes.public, None))
        self._forget(followed)

    def _forget(self, followed: Followed) -> None:
        if self._followed.get(followed.topic) is followed:
            del self._followed[followed.topic]
        if not self._closed:
            self._leaving.begin(followed.topic, lambda: self._leave(followed.topic))

    async def _leave(self, topic: str) -> None:
        assert self._feed is not None, "the gateway gives the feed before it starts"
        try:
            await self._feed.unfollow(topic)
        except BrokerError as error:
            _log.warning("unfollow_failed", extra={"topic": topic, "cause": error.log_text or error.message})

    async def _repair(self, followed: Followed) -> None:
        """Follow again after what the log has; where that is gone, tell the viewers to read again."""
        assert self._feed is not None, "the gateway gives the feed before it starts"
        head = self._logs.head(followed.topic)
        if head is None or followed.buffer is not None:
            return
        followed.buffer = []
        resets: list[Entry] = []
        try:
            await self._feed.unfollow(followed.topic)
            followed.buffer.clear()
            try:
                cursor = Cursor(head[0], head[1], self._logs.newest_id(followed.topic))
                await self._feed.follow(followed.topic, cursor)
            except HistoryLost:
                now = await self._feed.follow(followed.topic)
                resets.append(_reset(followed.topic, now))
        except BrokerError as error:
            _log.error("topic_lost", extra={"topic": followed.topic, "cause": error.message})
        waiting, followed.buffer = [*resets, *followed.buffer], None
        self.take_entries(followed.topic, waiting)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = run_once("topic", work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def native_entry(entry: Entry) -> "NativeEntry":
    """The entry as native code takes it."""
    return int(entry.kind), entry.epoch, entry.seq, entry.method, entry.params


def _reset(topic: str, head: Head) -> Entry:
    program_id = topic.rsplit("/", 1)[-1]
    params = {"programId": program_id, "epoch": head.epoch, "seq": head.seq}
    return Entry(EntryKind.RESET, head.epoch, head.seq, "historyReplaced", orjson.dumps(params))
