"""Views of the channel `programs` for callers who may not see every program of the account.

A private program is invisible outside its project, and so are its changes. Whoever
sees every program follows the channel's own log. For every other class of readers that is here, this gateway
keeps a log of its own, named as the channel with the number of the class; native code looks for it first.
What the channel says is copied into such a log if the class may know of the program.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from broker.domain import permissions
from broker.domain.permission_table import SUBSCRIPTIONS, Target
from broker.domain.programs import Program
from broker.domain.users import Principal
from broker.gateway.topics import FollowedTopics, Logs, native_entry
from broker.ids import IdSource
from broker.owners.encoding import RESUMED
from broker.owners.protocol import PROGRAMS_CHANNEL, Entry, EntryKind, channel_topic

RULE = SUBSCRIPTIONS[PROGRAMS_CHANNEL]


@dataclass(frozen=True, slots=True)
class _View:
    topic: str
    reader: Principal
    epoch: str


def sees_everything(principal: Principal) -> bool:
    """Whether the channel's own log is the caller's to follow."""
    return RULE.allows(principal.role, Target.PRIVATE_FOREIGN)


def view_topic(account: str, reader: int) -> str:
    """The topic of a reader class's view; native code makes the same one."""
    return f"{channel_topic(account, PROGRAMS_CHANNEL)}?{reader}"


class ProgramViews:
    """All views of one gateway."""

    def __init__(self, topics: FollowedTopics, logs: Logs, ids: IdSource) -> None:
        self._topics = topics
        self._logs = logs
        self._ids = ids
        self._views: dict[str, dict[str, _View]] = {}  # by the channel's topic and their own

    async def open(self, principal: Principal, reader: int) -> str:
        """The topic of the view of the caller's reader class, with an open log.

        Raises:
            Unavailable: the channel's owner cannot be reached in time.
        """
        channel, topic = (
            channel_topic(principal.account, PROGRAMS_CHANNEL),
            view_topic(principal.account, reader),
        )
        self._topics.watch(channel, "views", lambda entries: self._hear(channel, entries))
        await self._topics.open(channel, pin=topic)
        views = self._views.setdefault(channel, {})
        if topic not in views:
            views[topic] = _View(topic, principal, self._ids.epoch())
            self._logs.open_log(topic, views[topic].epoch, 0, False)
        return topic

    def is_view(self, topic: str) -> bool:
        """Whether a topic is an open view."""
        return topic in self._views.get(topic.partition("?")[0], {})

    def close_if_idle(self, topic: str) -> None:
        """Let a view go unless it has a subscriber."""
        if not self._logs.close_log(topic):
            return
        channel = topic.partition("?")[0]
        del self._views[channel][topic]
        self._topics.unpin(channel, topic)

    def _hear(self, channel: str, entries: Sequence[Entry]) -> None:
        views = self._views.get(channel, {}).values()
        for entry in entries:
            if entry.method == RESUMED:
                told = list(views)
            elif entry.method == "program":
                program = _program(entry.params)
                told = [view for view in views if _may_see(view.reader, program)]
            else:
                continue
            for view in told:
                copy = entry._replace(kind=EntryKind.NOTICE, epoch=view.epoch, seq=0)
                self._logs.append(view.topic, [native_entry(copy)])


def _may_see(reader: Principal, program: Program) -> bool:
    return RULE.allows(reader.role, permissions.program_target(reader, program))


def _program(params: bytes) -> Program:
    """The program that a notification is about."""
    return Program.read(_stored(orjson.loads(params)["program"]))


def _stored(program: dict[str, object]) -> dict[str, object]:
    """A program as it is told, without what is derived."""
    return {name: value for name, value in program.items() if name != "live"}
