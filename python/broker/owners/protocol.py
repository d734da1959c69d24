"""The values that travel between owners, publishing doors and following gateways.

A *topic* is one ordered stream. Topics are named by account, so that no name of one account can be one of
another: `demo/program/final-2026`, `demo/channel/programs`.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from broker.domain.users import Role
from broker.errors import BrokerError


def program_topic(account: str, program_id: str) -> str:
    """The topic of a program's pushes."""
    return f"{account}/program/{program_id}"


def channel_topic(account: str, channel: str) -> str:
    """The topic of a channel (`programs`, `project:<id>`)."""
    return f"{account}/channel/{channel}"


def is_channel(topic: str) -> bool:
    """Whether a topic is a channel's, whose entries have no numbers of their own."""
    return topic.partition("/")[2].startswith("channel/")


PROGRAMS_CHANNEL = "programs"
STORAGE_CHANNEL = "storage:"
"""What the name of a project's storage channel begins with; the project's id follows."""
RESPONSES_CHANNEL = "responses:"
"""What the name of a program's channel of live results begins with; the program's id follows."""


class EntryKind(IntEnum):
    """What an entry of a topic does to whoever follows it."""

    PUSH = 0
    """A notification with the next seq of the epoch."""
    NOTICE = 1
    """A notification without a seq (`seq` is 0); it takes its place between the pushes."""
    RESET = 2
    """A new epoch: `epoch` is its name, `seq` its base; a notification goes with it.

    One of the same epoch stands for pushes up to `seq` that can be had no longer; where they are known, it is
    a repeat.
    """
    GONE = 3
    """The topic has ended; its notification is the last one and all subscriptions end after it."""
    ATTRIBUTES = 4
    """No notification: `params` is the JSON of the topic's new `Attributes`."""


class Entry(NamedTuple):
    """One step of a topic.

    `method` and `params` are the notification's: `params` is a finished JSON object, shared by every viewer.
    """

    kind: int
    epoch: str
    seq: int
    method: str
    params: bytes


@dataclass(frozen=True, slots=True)
class Attributes:
    """What decides who may follow a topic, where else its pushes go, and in which contexts its polls are."""

    public: bool
    project_id: str | None
    free_contexts: bool = False


@dataclass(frozen=True, slots=True)
class Head:
    """Where a topic stands: what comes next is `seq + 1` of `epoch`.

    `id` and `uid` are those of a `Cursor` that has everything.
    """

    epoch: str
    seq: int
    attributes: Attributes
    id: str = ""
    uid: int = 0


@dataclass(frozen=True, slots=True)
class Cursor:
    """A follower's position: it has everything up to and including `seq` of `epoch`.

    It says what it has seen, too: `id` is that of the message at `seq` (of the event that the message is
    about; of a channel, `notice_id` of its params), `uid` the number of the program. Where the database has
    another message there, or none, it has lost what the follower was told. What is empty or 0 is not known
    and is compared with nothing.
    """

    epoch: str
    seq: int
    id: str = ""
    uid: int = 0


class Caller(NamedTuple):
    """Who asks for a change, as far as rights go by it; None stands for a caller above all roles.

    The door has asked the rule of the operation already, about the program as it was then. The owner asks it
    again about the program as it is when the command's turn comes.
    """

    role: Role | None
    project_ids: frozenset[str]


class NewEventRow(NamedTuple):  # which is carried between processes in a third of a dataclass' time
    """A validated event on its way to its owner.

    `timestamp` and `timecode` are None when the producer left them out; `metadata` is compact JSON.
    """

    id: str
    timestamp: int | None
    timecode: int | None
    event: str
    metadata: bytes


class HistoryLost(BrokerError, status=409, name="history_lost"):
    """The epoch is gone or the wanted entries are over the history limit; read the events by REST."""
