"""`Feed` over links: follows topics across failures of owners.

For each owner there is one session at the owner and one task here. The task opens the session with the
cursors of all followed topics, then polls; each poll acknowledges the previous reply. A cursor contains the
id of the last message, so that an owner notices if the database has another message at that position. After
any failure (the owner died, a reply does not arrive, the session is unknown) the task opens a new session
with its current cursors, and the owner sends what was missed. So the sink receives every entry once and in
order. When the placement changes, a topic goes on at its new owner in the same way.

Where there are many gateways the session may be at a relay instead (`broker.owners.upstreams`). Everything
else is asked of the owner itself: histories, and where topics stand.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from broker.actors.link import Link, LinkLost, SlotLinks
from broker.clock import Clock
from broker.concurrency.back_off import Backoff, Delays
from broker.concurrency.tasks import cancel_and_wait, keep_running
from broker.domain.placement import Placement
from broker.errors import BrokerError, NotFound, Unavailable
from broker.ids import IdSource
from broker.owners.calls import OWNER_CALLS
from broker.owners.encoding import attributes_entry, gone_entry, parse_attributes, told_id
from broker.owners.feed import HandOvers, HeadSeen, Sink
from broker.owners.known_placement import KnownPlacement
from broker.owners.moved import Moved
from broker.owners.placement import OWNER
from broker.owners.protocol import Attributes, Cursor, Entry, EntryKind, Head
from broker.owners.sessions import POLL_WAIT_S, EntryBatch, Follow, PollReply
from broker.owners.upstreams import SessionRoute, Upstreams
from broker.settings import Settings

_log = logging.getLogger(__name__)
_RETRY = Backoff(0.02, 0.2, jitter=0)  # before an owner is asked again
_CALL_S = 5.0  # of a call that does not wait for news
_POLL_GRACE_S = 10.0
_LEAVE_S = 1.0
_HEADS_S = 0.5  # so that one owner that hangs does not let the polls of other owners lapse
_OPEN_S = 0.5  # of a wait for a session, before a look at whether the topic is still wanted
_OPEN_PAGE = 5_000  # topics in one call that opens a session or follows more


@dataclass(slots=True, eq=False)
class _Following:
    """One topic that is followed.

    Attributes:
        poller: at the owner that has the topic, as far as is known.
        number: of the try to follow it at its poller; entries of an earlier try are thrown away.
        start: the cursor that was asked for.
        cursor: what has been taken; None until an owner has answered where it begins.
        early: entries that came before the caller of `follow` was ready for them.
        is_over: unfollowed, or ended by its owner.
    """

    topic: str
    start: Cursor | None
    poller: "_Poller"
    head: asyncio.Future[Head] = field(default_factory=asyncio.Future)
    number: int = 0
    cursor: Cursor | None = None
    attributes: Attributes | None = None
    early: list[EntryBatch] = field(default_factory=list)
    is_over: bool = False


class LinkedFeed:
    """The `Feed` over links to owners. Belongs to one event loop; `close` it there.

    The entries after a head come no sooner than the loop's next turn after `follow` has returned, so whoever
    awaits `follow` directly can get ready for them.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        ids: IdSource,
        sink: Sink,
        links: Sequence[Link] = (),
        *,
        placement: KnownPlacement | None = None,
        upstreams: Upstreams | None = None,
        gives_all: bool = False,
    ) -> None:
        """Make a feed.

        Args:
            links: the ways to the first owners, one a slot; those to others are Ray's.
            placement: by default that of the settings.
            upstreams: says which relay to follow in the place of owners; without it, none.
            gives_all: whether the sink hears all that owners send, attributes that are no news and the names
                of traces too, to send it on.
        """
        self._settings = settings
        self._clock = clock
        self._followings: dict[str, _Following] = {}
        self._name = ids.uuid7()
        self._sink = sink
        self._hand_overs: HandOvers | None = None
        self._links = SlotLinks(OWNER, OWNER_CALLS, links)
        self._polls: dict[int, _Poller] = {}
        self._upstreams = upstreams
        self._gives_all = gives_all
        self._placement = placement or KnownPlacement(settings.owners)
        self._placement.on_change(self._follow_moved)

    async def follow(self, topic: str, cursor: Cursor | None = None) -> Head:
        """Follow a topic at its owner, with the promises of `Feed.follow`."""
        following = self._followings.get(topic)
        if following is not None:
            if following.cursor is not None and following.attributes is not None:
                cursor = following.cursor
                return Head(cursor.epoch, cursor.seq, following.attributes, cursor.id, cursor.uid)
            return await asyncio.shield(following.head)
        following = self._followings[topic] = _Following(topic, cursor, self._poller(topic))
        try:
            head = await self._begin(following)
        except BaseException as error:
            self._forget(following)
            if isinstance(error, BrokerError):
                following.head.set_exception(error)
                following.head.exception()  # read: nobody else may be waiting
            else:
                following.head.cancel()
            raise
        following.head.set_result(head)
        return head

    async def unfollow(self, topic: str) -> None:
        """Stop following a topic. The owner is told as soon as it can be reached."""
        following = self._followings.get(topic)
        if following is not None:
            self._forget(following)
            await following.poller.unfollow(following)

    async def history(self, topic: str, epoch: str, after_seq: int, limit: int) -> list[Entry]:
        """Read older pushes of a topic from its owner."""
        reply = await self._insist(topic, "history", topic, epoch, after_seq, limit)
        if isinstance(reply, BrokerError):
            raise reply
        entries: list[Entry] = reply
        return entries

    async def ask_heads(self, topics: Collection[str], seen: HeadSeen) -> None:
        """Ask the owner of each topic, all at once, and return soon."""
        asked: dict[_Poller, list[str]] = {}
        for topic in topics:
            asked.setdefault(self._poller(topic), []).append(topic)
        await asyncio.gather(*(poller.ask_heads(names, seen) for poller, names in asked.items()))

    def follow_traces(self, hand_overs: HandOvers) -> None:
        """Tell `hand_overs` of what the sink gets."""
        self._hand_overs = hand_overs

    def position(self, topic: str) -> Cursor | None:
        """The cursor of who has all that the sink was given; None of a topic that is not followed yet."""
        following = self._followings.get(topic)
        return None if following is None else following.cursor

    async def touch(self) -> None:
        """Ask each owner whether it can be reached, and return soon; `silent_s` tells."""
        await asyncio.gather(*(poller.touch() for poller in self._polls.values()))

    def silent_s(self, topic: str) -> float:
        """Seconds since the topic's owner, or one that is about to have it, has answered a `touch`."""
        following = self._followings.get(topic)
        return 0.0 if following is None else self._clock.monotonic_s() - following.poller.heard_s

    async def close(self) -> None:
        """End all sessions and links."""
        self._followings.clear()
        await asyncio.gather(*(poller.close() for poller in self._polls.values()))
        self._links.close()
        if self._upstreams is not None:
            self._upstreams.close()

    async def _begin(self, following: _Following) -> Head:
        """Follow a topic at its owner, and at the next one when it moves meanwhile."""
        deadline_s = self._clock.monotonic_s() + self._settings.publish_timeout_s
        while True:
            poller = following.poller
            try:
                return await poller.follow(following, deadline_s)
            except Moved:
                if following.poller is poller:
                    raise

    async def _insist(self, topic: str, method: str, *arguments: object) -> Any:
        """Call the topic's owner until a reply comes that is not Unavailable. Raises Unavailable."""
        deadline_s = self._clock.monotonic_s() + self._settings.publish_timeout_s
        delays = Delays(_RETRY)
        while (left_s := deadline_s - self._clock.monotonic_s()) > 0:
            index = self._placement.owner_of(topic)
            try:
                reply = await self._links[index].call(method, *arguments, timeout_s=left_s)
                if isinstance(reply, Moved):
                    self._placement.learn(reply)
                elif not isinstance(reply, Unavailable):
                    return reply
            except LinkLost:
                pass
            if self._placement.owner_of(topic) == index:
                await delays.wait(left_s)
        raise Unavailable("the program's owner cannot be reached", retry_after_s=1)

    def _poller(self, topic: str) -> "_Poller":
        index = self._placement.owner_of(topic)
        poller = self._polls.get(index)
        if poller is None:
            link = self._links[index]
            poller = self._polls[index] = _Poller(
                link,
                SessionRoute(link, self._upstreams, self._clock),
                self._clock,
                f"{self._name}/{index}",
                self._sink,
                self._hand_overs,
                self._forget,
                self._placement.learn,
                gives_all=self._gives_all,
            )
        return poller

    def _follow_moved(self, _before: Placement) -> None:
        """Go on at their new owners with the topics that have moved."""
        gaining: set[_Poller] = set()
        for following in self._followings.values():
            poller = self._poller(following.topic)
            if poller is not following.poller:
                following.poller.lose(following)
                following.poller = poller
                if following.cursor is not None:
                    poller.take_over(following)
                    gaining.add(poller)
        for poller in gaining:
            poller.open_anew()

    def _forget(self, following: _Following) -> None:
        if self._followings.get(following.topic) is following:
            del self._followings[following.topic]
        following.poller.forget(following)


class _Poller:
    """The session of one owner's topics: there, or at a relay.

    Attributes:
        heard_s: when the owner has last answered a `touch`; first, when this was made.
    """

    def __init__(
        self,
        link: Link,
        route: SessionRoute,
        clock: Clock,
        name: str,
        sink: Sink,
        hand_overs: HandOvers | None,
        forget: Any,
        learn: Callable[[Moved], None],
        *,
        gives_all: bool,
    ) -> None:
        self.heard_s = clock.monotonic_s()
        self._learn = learn
        self._link = link
        self._route = route
        self._clock = clock
        self._gives_all = gives_all
        self._name = name
        self._sink = sink
        self._hand_overs = hand_overs
        self._forget = forget
        self._followings: dict[int, _Following] = {}
        self._life = 0
        self._number = 0
        self._opened = asyncio.Event()
        self._wanted = asyncio.Event()
        self._strays: set[int] = set()
        self._task: asyncio.Task[None] | None = None

    # -- what the feed asks

    async def follow(self, following: _Following, deadline_s: float) -> Head:
        """Raises NotFound, HistoryLost, Unavailable; Moved when the topic has another poller."""
        self._renumber(following)
        self._start()
        delays = Delays(_RETRY)
        while (left_s := deadline_s - self._clock.monotonic_s()) > 0:
            reply = await self._try_follow(following, min(left_s, _CALL_S))
            if following.is_over:
                raise Unavailable("the topic was unfollowed meanwhile", retry_after_s=1)
            if isinstance(reply, Moved):
                self._learn(reply)
            if following.poller is not self:
                raise Moved
            if isinstance(reply, Head):
                return self._activate(following, reply)
            if reply is not None and not isinstance(reply, Unavailable):
                raise reply
            if reply is not None and self._route.is_relayed:
                self._life += 1  # so that other topics' refusals by this session are no further ones
                self._route.refused()
                self.open_anew()
            await delays.wait(left_s)
            self._renumber(following)
        raise Unavailable("the program's owner cannot be reached", retry_after_s=1)

    def lose(self, following: _Following) -> None:
        """Another owner has the topic now. What this one may still bring of it counts no more."""
        if self._followings.pop(following.number, None) is not None:
            self._strays.add(following.number)
        following.number = 0  # numbers are those of a poller
        if not self._followings:
            self._wanted.clear()

    def take_over(self, following: _Following) -> None:
        """Go on with a topic that another poller has had; `open_anew` follows."""
        self._number += 1
        following.number = self._number
        self._followings[following.number] = following

    def open_anew(self) -> None:
        """Begin another session, with all that is followed."""
        if self._task is not None:
            self._task.cancel()  # what its call may have brought is sent again
            self._task = None
            self._opened.clear()
        self._start()

    def _start(self) -> None:
        self._wanted.set()
        if self._task is None:
            self._task = keep_running("feed", self._run)

    async def _try_follow(self, following: _Following, wait_s: float) -> Head | BrokerError | None:
        """None when the session ended meanwhile or no reply came."""
        try:
            async with asyncio.timeout(min(wait_s, _OPEN_S)):
                await self._opened.wait()
            life = self._life
            follow = Follow(following.number, following.topic, following.start, strict=True)
            replies = await self._route.link.call("follow", self._session, [follow], timeout_s=wait_s)
        except (TimeoutError, LinkLost):
            return None
        if replies is None or life != self._life:
            return None
        reply: Head | BrokerError = replies[0]
        return reply

    def _renumber(self, following: _Following) -> None:
        """Begin a try: what an earlier one may still bring counts no more."""
        if following.number:
            self._followings.pop(following.number, None)
            self._strays.add(following.number)
        following.early.clear()
        self._number += 1
        following.number = self._number
        if not following.is_over:
            self._followings[following.number] = following

    def _activate(self, following: _Following, head: Head) -> Head:
        following.cursor = Cursor(head.epoch, head.seq, head.id, head.uid)
        following.attributes = head.attributes
        if following.early:
            for batch in following.early:
                following.cursor = _after(following.cursor, batch)
            # handed over after the caller has seen the head
            asyncio.get_running_loop().call_soon(self._hand_over_early, following)
        return head

    def _hand_over_early(self, following: _Following) -> None:
        early, following.early = following.early, []
        for batch in early:
            self._hand_over(following, batch.entries)

    def forget(self, following: _Following) -> None:
        """Hear no more of it."""
        following.is_over = True
        self._followings.pop(following.number, None)
        if not self._followings:
            self._wanted.clear()

    async def unfollow(self, following: _Following) -> None:
        """Tell the owner; one that cannot be told keeps sending, and is told again then."""
        try:
            link, numbers = self._route.link, [following.number]
            await link.call("unfollow", self._session, numbers, timeout_s=_LEAVE_S)
        except LinkLost:
            self._strays.add(following.number)

    async def ask_heads(self, topics: Sequence[str], seen: HeadSeen) -> None:
        """Ask this owner; one that does not answer is passed over."""
        try:
            heads = await self._link.call("heads", topics, timeout_s=_HEADS_S)
        except LinkLost:
            return
        for topic, head in zip(topics, heads or (), strict=False):
            if head is not None:
                seen(topic, head)

    async def touch(self) -> None:
        """Ask the owner anything."""
        try:
            await self._link.call("heads", [], timeout_s=_HEADS_S)
        except LinkLost:
            return
        self.heard_s = self._clock.monotonic_s()

    async def close(self) -> None:
        """Leave the owner."""
        self._followings.clear()
        if self._task is not None:
            await cancel_and_wait(self._task)
            await self._leave(self._session)

    # -- the task

    @property
    def _session(self) -> str:
        return f"{self._name}/{self._life}"

    async def _run(self) -> None:
        delays = Delays(_RETRY)
        while True:
            await self._wanted.wait()
            try:
                if await self._open():
                    self._route.opened()
                    self._opened.set()
                    delays.reset()
                    await self._poll()
                elif self._route.is_relayed:
                    self._route.refused()
                    await self._leave(self._session)
            except LinkLost as error:
                self._route.lost()
                event = "relay_lost" if self._route.is_relayed else "owner_lost"
                _log.info(event, extra={"session": self._session, "call": str(error)})
            except Exception:
                _log.exception("poll_failed", extra={"session": self._session})
            finally:
                if self._task is asyncio.current_task():  # else another one has the session now
                    self._opened.clear()
            await delays.wait()

    async def _open(self) -> bool:
        """Begin a session with everything that is followed. Raises LinkLost.

        Returns:
            False when the owner cannot yet.
        """
        self._life += 1
        self._route.choose()
        active = [following for following in self._followings.values() if following.cursor is not None]
        follows = [Follow(following.number, following.topic, following.cursor) for following in active]
        replies: list[Any] = []
        for start in range(0, max(1, len(follows)), _OPEN_PAGE):
            page = follows[start : start + _OPEN_PAGE]
            method = "open" if start == 0 else "follow"
            reply = await self._route.link.call(method, self._session, page, timeout_s=_CALL_S)
            if not isinstance(reply, list):
                return False
            replies += reply
        for reply in replies:
            if isinstance(reply, Moved):
                self._learn(reply)
        if any(isinstance(reply, Unavailable) for reply in replies):
            return False
        for following, reply in zip(active, replies, strict=True):
            cursor = following.cursor
            assert cursor is not None  # active
            if following.poller is not self:
                continue
            if following.is_over:
                self._strays.add(following.number)
            elif isinstance(reply, NotFound):
                program_id = following.topic.partition("/")[2].partition("/")[2]
                self._hand_over(following, [gone_entry(program_id, cursor.epoch, cursor.seq)])
            elif isinstance(reply, Head) and reply.attributes != following.attributes:
                self._hand_over(following, [attributes_entry(cursor.epoch, cursor.seq, reply.attributes)])
        return True

    async def _poll(self) -> None:
        """Poll until the session is unknown or belongs elsewhere, or nothing is followed. Raises LinkLost."""
        ack, link = 0, self._route.link
        while self._wanted.is_set():
            reply = await link.call("poll", self._session, ack, timeout_s=POLL_WAIT_S + _POLL_GRACE_S)
            if isinstance(reply, BrokerError):
                await asyncio.sleep(_RETRY.cap_s / 4)
                continue
            if reply is None:
                return
            ack = self._take(reply)
            if self._strays:
                strays = list(self._strays)
                await link.call("unfollow", self._session, strays, timeout_s=_CALL_S)
                self._strays.difference_update(strays)
            if not self._route.is_best:
                session = self._session
                self._opened.clear()
                self._life += 1  # what is being asked of this session is asked again of the next one
                await self._leave(session)
                return

    async def _leave(self, session: str) -> None:
        """End the session; who cannot be told forgets it by itself."""
        with suppress(LinkLost):
            await self._route.link.call("leave", session, timeout_s=_LEAVE_S)

    def _take(self, reply: PollReply) -> int:
        for batch in reply.batches:
            following = self._followings.get(batch.number)
            if following is None:
                self._strays.add(batch.number)
            else:
                self._take_batch(following, batch)
        return reply.number

    def _take_batch(self, following: _Following, batch: EntryBatch) -> None:
        if following.cursor is not None:
            following.cursor = _after(following.cursor, batch)
        if following.cursor is None or following.early:
            following.early.append(batch)
        else:
            self._hand_over(following, batch.entries)

    def _hand_over(self, following: _Following, entries: Sequence[Entry]) -> None:
        news = [entry for entry in entries if self._is_news(following, entry)]
        if self._gives_all:
            news = list(entries)
        if not news or following.is_over:
            return
        if news[-1].kind == EntryKind.GONE:
            self._forget(following)
        try:
            if self._hand_overs is None:
                self._sink(following.topic, news)
            else:
                with self._hand_overs.handed_over(following.topic, entries):
                    self._sink(following.topic, news)
        except Exception:
            _log.exception("sink_failed", extra={"topic": following.topic})

    def _is_news(self, following: _Following, entry: Entry) -> bool:
        """All but attributes that are known already."""
        if entry.kind != EntryKind.ATTRIBUTES:
            return True
        attributes = parse_attributes(entry.params)
        is_new = attributes != following.attributes
        following.attributes = attributes
        return is_new


def _after(cursor: Cursor, batch: EntryBatch) -> Cursor:
    """The cursor of who had everything up to `cursor` and has taken a batch."""
    for entry in reversed(batch.entries):
        id_ = told_id(entry)
        if id_ is not None:
            return Cursor(batch.epoch, batch.seq, id_, cursor.uid)
    return Cursor(batch.epoch, batch.seq, cursor.id, cursor.uid)
