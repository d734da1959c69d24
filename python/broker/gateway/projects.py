"""The channels `project:<id>`: all pushes of all programs of a project.

No owner keeps such a channel. A gateway that has a subscriber of one follows every program of the project and
links their logs to the channel's own log, natively: no push is copied by Python. The set of programs is kept
current by two sources. What a program's owner says of its project moves a linked program at its very place
among the pushes. The account's `programs` topic brings programs that nobody here followed before; one that
was created just now is followed from its first push on, one that moved in from the moment this gateway hears
of it. Where it says that news may be missing, the list is read again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import orjson

from broker.concurrency.single_flight import SingleFlight
from broker.concurrency.tasks import cancel_and_wait, run_once
from broker.domain.programs import ProgramChange
from broker.errors import BrokerError, NotFound
from broker.gateway.topics import Followed, FollowedTopics, Logs
from broker.operations.services import Services
from broker.owners.encoding import RESUMED
from broker.owners.protocol import PROGRAMS_CHANNEL, Attributes, Entry, channel_topic, program_topic
from broker.resources.following import PROJECT_CHANNEL
from broker.storage.programs import ProgramQuery

_log = logging.getLogger(__name__)

PAGE_PROGRAMS = 500
OPENED_AT_ONCE = 32
JOIN_RETRY_S = 1.0
_ALL = ""  # in the place of a program's id: of those whose news may be missing


@dataclass(slots=True)
class _Channel:
    topic: str
    account: str
    project_id: str
    linked: set[str] = field(default_factory=set)
    joins: dict[str, asyncio.Task[None]] = field(default_factory=dict)


class ProjectChannels:
    """All project channels of one gateway. Owns the tasks that follow their programs."""

    def __init__(self, topics: FollowedTopics, logs: Logs, services: Services) -> None:
        self._topics = topics
        self._logs = logs
        self._services = services
        self._channels: dict[str, _Channel] = {}
        self._opening: SingleFlight[str, None] = SingleFlight()
        self._tasks: set[asyncio.Task[None]] = set()

    def is_open(self, topic: str) -> bool:
        """Whether the channel's log takes pushes of all its programs."""
        return topic in self._channels and topic not in self._opening

    async def open(self, account: str, project_id: str) -> None:
        """Follow all programs of the project; at once when they are followed.

        Raises:
            Unavailable: the database or an owner cannot be reached in time.
        """
        topic = channel_topic(account, f"{PROJECT_CHANNEL}{project_id}")
        if not self.is_open(topic):
            await self._opening.run(topic, lambda: self._open(_Channel(topic, account, project_id)))

    def close_if_idle(self, topic: str) -> bool:
        """Let the channel's programs go unless it has a subscriber."""
        if topic in self._opening or not self._logs.close_log(topic):
            return False
        channel = self._channels.get(topic)
        if channel is not None:
            self._dissolve(channel)
        return True

    def attributes_changed(self, followed: Followed, before: Attributes, now: Attributes) -> None:
        """Move a followed program from the channel of its earlier project to that of its present one."""
        account, kind, _ = followed.topic.split("/", 2)
        if before.project_id == now.project_id or kind != "program":  # live results are no events
            return
        left = self._find(account, before.project_id)
        if left is not None:
            self._unlink(left, followed.topic)
        joined = self._find(account, now.project_id)
        if joined is not None:
            self._link(joined, followed)

    async def close(self) -> None:
        """End all tasks. Idempotent."""
        await self._opening.close()
        await cancel_and_wait(*self._tasks)
        self._channels.clear()

    async def _open(self, channel: _Channel) -> None:
        programs_topic = channel_topic(channel.account, PROGRAMS_CHANNEL)
        # Nobody can subscribe yet: the log is private, and no reader is let in before this has ended.
        self._logs.open_log(channel.topic, self._services.ids.epoch(), 0, False)
        self._channels[channel.topic] = channel
        # First the news, then the list: a program that is made in between is in one of them, or in both.
        self._topics.watch(programs_topic, "projects", lambda entries: self._hear(channel.account, entries))
        try:
            await self._topics.open(programs_topic, pin=channel.topic)
            await self._follow_all(channel)
        except BaseException:
            self._logs.close_log(channel.topic)
            self._dissolve(channel)
            raise

    async def _follow_all(self, channel: _Channel, *, from_start: bool = False) -> None:
        seen, total = 0, 1
        while seen < total:
            query = ProgramQuery(
                limit=PAGE_PROGRAMS,
                skip=seen,
                sort="id",
                descending=False,
                project_id=channel.project_id,
            )
            programs, total = await self._services.programs.filter(
                channel.account, query, self._services.clock.now_ms()
            )
            if not programs:
                return
            seen += len(programs)
            for start in range(0, len(programs), OPENED_AT_ONCE):
                group = programs[start : start + OPENED_AT_ONCE]
                await _all(self._follow(channel, each.id, from_start=from_start) for each in group)

    async def _follow(self, channel: _Channel, program_id: str, *, from_start: bool = False) -> None:
        topic = program_topic(channel.account, program_id)
        try:
            followed = await self._topics.open(topic, from_start=from_start)
        except NotFound:
            return  # deleted since it was listed
        attributes = followed.attributes
        if attributes is not None and attributes.project_id == channel.project_id:
            self._link(channel, followed)

    def _hear(self, account: str, entries: Sequence[Entry]) -> None:
        """Take news from the `programs` topic: programs that belong to an open channel join it."""
        for entry in entries:
            if entry.method == RESUMED:
                self._join_missed(account)
            if entry.method != "program":
                continue
            news = orjson.loads(entry.params)
            program, change = news["program"], news["change"]
            channel = self._find(account, program.get("projectId"))
            if channel is None or change == ProgramChange.DELETED:
                continue
            topic = program_topic(account, program["id"])
            if topic not in channel.linked and program["id"] not in channel.joins:
                is_new = change == ProgramChange.CREATED
                follow = partial(self._follow, channel, program["id"], from_start=is_new)
                self._begin_join(channel, program["id"], follow)

    def _join_missed(self, account: str) -> None:
        """News of the account may be missing: whatever is not followed yet has been made since."""
        for channel in self._channels.values():
            if channel.account == account:
                if (earlier := channel.joins.pop(_ALL, None)) is not None:
                    earlier.cancel()  # it may have read a part of the list before
                self._begin_join(channel, _ALL, partial(self._follow_all, channel, from_start=True))

    def _begin_join(self, channel: _Channel, name: str, follow: Callable[[], Awaitable[None]]) -> None:
        task = run_once("join", self._join(channel, name, follow))
        channel.joins[name] = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _join(self, channel: _Channel, name: str, follow: Callable[[], Awaitable[None]]) -> None:
        """Follow more programs, however long their owners are unreachable; ends with the channel."""
        try:
            while self._channels.get(channel.topic) is channel:
                try:
                    await follow()
                    return
                except BrokerError as error:
                    _log.warning("join_failed", extra={"topic": channel.topic, "cause": error.message})
                await asyncio.sleep(JOIN_RETRY_S)
        finally:
            if channel.joins.get(name) is asyncio.current_task():
                del channel.joins[name]

    def _find(self, account: str, project_id: str | None) -> _Channel | None:
        if project_id is None:
            return None
        return self._channels.get(channel_topic(account, f"{PROJECT_CHANNEL}{project_id}"))

    def _link(self, channel: _Channel, followed: Followed) -> None:
        if followed.topic not in channel.linked:
            channel.linked.add(followed.topic)
            followed.pins.add(channel.topic)
            self._logs.link(followed.topic, channel.topic)

    def _unlink(self, channel: _Channel, topic: str) -> None:
        if topic in channel.linked:
            channel.linked.remove(topic)
            self._logs.unlink(topic, channel.topic)
            # Not now: entries of the same topic may be on their way into its log.
            asyncio.get_running_loop().call_soon(self._release, channel.topic, topic)

    def _release(self, channel_topic: str, topic: str) -> None:
        channel = self._channels.get(channel_topic)
        if channel is None or topic not in channel.linked:
            self._topics.unpin(topic, channel_topic)

    def _dissolve(self, channel: _Channel) -> None:
        if self._channels.get(channel.topic) is channel:
            del self._channels[channel.topic]
        for task in channel.joins.values():
            task.cancel()
        for topic in list(channel.linked):
            self._unlink(channel, topic)
        self._topics.unpin(channel_topic(channel.account, PROGRAMS_CHANNEL), channel.topic)


async def _all(work: Iterable[Coroutine[None, None, None]]) -> None:
    """Do all of it, then raise the first failure, if any."""
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
