"""The notifications and close codes of gateways, over WebSocket and on event streams.

Nothing here runs. Owners and native code write these messages; the AsyncAPI document is generated from here,
and tests compare every one that a gateway sends with its model.
"""

from dataclasses import dataclass
from typing import Literal

from pydantic import ConfigDict, Field

from broker.domain.events import Event
from broker.domain.programs import ProgramResource
from broker.domain.stored_values import StoredValue
from broker.domain.values import Model
from broker.voting.rules import LiveResults


class Notice(Model):
    """A member that may be absent is absent, never null."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=False)


class ProgramNotice(Notice):
    """What a program tells its followers. Those of `project:<id>` get it with the channel's name."""

    channel: str = Field(default="", description="`project:<id>`, on that channel only.")


class EventNotice(Event, ProgramNotice):
    """A push of an event; `seq` is one more than that of the push before."""


class EventDeletedNotice(ProgramNotice):
    """The event `id` was deleted."""

    seq: int
    epoch: str
    program_id: str
    id: str


class EventsDeletedNotice(ProgramNotice):
    """All events were deleted. A new epoch begins, and its next push has `seq + 1`."""

    program_id: str
    deleted: int
    epoch: str
    seq: int


class HistoryReplacedNotice(ProgramNotice):
    """The events are other ones: after an import, or after a loss. A new epoch goes on from `seq`."""

    program_id: str
    epoch: str
    seq: int


class ProgramDeletedNotice(ProgramNotice):
    """The program is gone, and what was followed of it."""

    program_id: str


class UnsubscribedNotice(Notice):
    """The subscription of a program or of a channel was ended."""

    program_id: str = ""
    channel: str = ""
    reason: Literal["private", "insufficient_scope", "token_expired", "token_revoked"]


class ProgramChangeNotice(Notice):
    """What has become of a program."""

    channel: Literal["programs"]
    change: Literal["created", "updated", "deleted", "live", "ended"]
    program: ProgramResource


class StoredNotice(Notice):
    """A value was stored, a new one or in place of another."""

    channel: str
    project_id: str
    value: StoredValue


class ResumedNotice(Notice):
    """Notifications of the channel before this one may be missing."""

    channel: str


class ResultsNotice(Notice):
    """How the counts are that have changed."""

    channel: str
    program_id: str
    results: list[LiveResults]


class TokenExpiringNotice(Notice):
    """The token ends in so many milliseconds."""

    expires_in_ms: int


class ReconnectNotice(Notice):
    """This gateway stops: connect again after so many milliseconds, to another one."""

    after_ms: int


class AliveNotice(Notice):
    """The gateway lives. The next sign of it, this or any other message, comes in so many milliseconds."""

    every_ms: int


class SubscribedNotice(Notice):
    """Where an event stream begins: what comes next has `seq + 1` of `epoch`.

    `id` is that of the message at `seq`, where the gateway has it. `recovered` is false when what lies
    between the requested position and this one are lost.
    """

    program_id: str
    epoch: str
    seq: int
    id: str = ""
    recovered: bool


class ClosedNotice(Notice):
    """The gateway ends an event stream.

    Attributes:
        code: as it would close a WebSocket; 1000 where the subscription is over.
        reason: why, as one word or a few.
        after_ms: how long to wait before another request; drawn again for each stream.
    """

    code: int
    reason: str
    after_ms: int


@dataclass(frozen=True, slots=True)
class Notification:
    """One kind of notification.

    Attributes:
        method: of the JSON-RPC notification; on an event stream the name of the event.
        summary: when it comes.
        params: its model.
        of: what has to be followed for it: `program` or the beginning of a channel's name; empty is every
            connection.
        has_place: whether it has a `seq` and so moves the position that a client goes on from.
    """

    method: str
    summary: str
    params: type[Model]
    of: tuple[str, ...] = ()
    has_place: bool = False


_OF_PROGRAM = ("program", "project:")

NOTIFICATIONS = (
    Notification("event", "An event was published.", EventNotice, _OF_PROGRAM, True),
    Notification(
        "eventUpdated",
        "An event was changed. Contains its new state; `seq` is the position of the change.",
        EventNotice,
        _OF_PROGRAM,
        True,
    ),
    Notification("eventDeleted", "An event was deleted.", EventDeletedNotice, _OF_PROGRAM, True),
    Notification(
        "eventsDeleted", "All events of the program were deleted.", EventsDeletedNotice, _OF_PROGRAM, True
    ),
    Notification(
        "historyReplaced",
        "An import has replaced the events, or the broker has lost some that it had pushed: read"
        " the events over REST.",
        HistoryReplacedNotice,
        _OF_PROGRAM,
        True,
    ),
    Notification(
        "programDeleted",
        "The program was deleted; the subscription has ended.",
        ProgramDeletedNotice,
        (*_OF_PROGRAM, "responses:"),
    ),
    Notification(
        "unsubscribed",
        "The subscription has ended: the program became private (`private`), the token does not"
        " permit it (`insufficient_scope`), has expired (`token_expired`) or was revoked"
        " (`token_revoked`).",
        UnsubscribedNotice,
        ("program", "programs", "project:", "storage:", "responses:"),
    ),
    Notification(
        "program",
        "A program was created, changed or deleted, went live or ended.",
        ProgramChangeNotice,
        ("programs",),
    ),
    Notification("stored", "A value was stored in the project.", StoredNotice, ("storage:",)),
    Notification(
        "resumed",
        "Notifications before this one may be missing, because the broker has lost some that it had sent:"
        " read the current state over REST.",
        ResumedNotice,
        ("programs", "storage:"),
    ),
    Notification(
        "results",
        "Live results have changed. Each measure of a context is sent at most once per second.",
        ResultsNotice,
        ("responses:",),
    ),
    Notification(
        "tokenExpiring",
        "The token expires in a minute or less: `login` renews it.",
        TokenExpiringNotice,
    ),
    Notification(
        "reconnect",
        "The gateway is shutting down. It closes the connection with 1012 after the given time,"
        " when no call is pending.",
        ReconnectNotice,
    ),
    Notification(
        "alive",
        "Nothing else was sent for the interval. Only to clients that ask for it, by `alive=true` in the"
        " query.",
        AliveNotice,
    ),
)


STREAM_NOTIFICATIONS = (
    Notification(
        "subscribed",
        "Always the first event: the position after which the stream continues. Missed events follow.",
        SubscribedNotice,
        ("program",),
        True,
    ),
    *(told for told in NOTIFICATIONS if not told.of or "program" in told.of),
    Notification("closed", "Always the last event when the gateway ends the stream.", ClosedNotice),
)
"""What comes on an event stream, which follows one program."""


@dataclass(frozen=True, slots=True)
class Close:
    """A close code of a gateway (RFC 6455, section 7.4).

    Attributes:
        figure: names it in the metric of closed connections.
        comes_back: whether the client should connect again and recover; otherwise it is at fault.
        reasons: those that `closed` names with it on an event stream; empty where it ends no stream.
    """

    code: int
    figure: str
    meaning: str
    comes_back: bool
    reasons: tuple[str, ...] = ()


CLOSES = (
    Close(1001, "stopping", "The gateway stops immediately.", True, ("going_away",)),
    Close(1002, "protocol", "A frame breaks RFC 6455.", False),
    Close(1003, "binary", "A binary message: messages are text.", False),
    Close(1007, "malformed", "Invalid UTF-8, or compressed data that cannot be inflated.", False),
    Close(1008, "flood", "The client sends far more messages than allowed.", False, ("message flood",)),
    Close(1008, "slow_message", "A message took over a minute to arrive.", False),
    Close(1009, "too_long", "A message exceeds the limit.", False),
    Close(1011, "no_pong", "No pong, nor any other byte, arrived in time.", True),
    Close(1012, "draining", "The gateway restarts, as announced by `reconnect`.", True, ("service_restart",)),
    Close(1013, "crowded", "All connections together hold too much waiting data: try again later.", True),
    Close(4008, "slow_consumer", "The client reads too slowly.", True, ("slow_consumer",)),
)


STREAM_ENDS = (
    Close(
        1000,
        "program_deleted",
        "The program was deleted, as announced by `programDeleted`.",
        False,
        ("program_deleted",),
    ),
    Close(
        1000,
        "unsubscribed",
        "The reader lost its right, as announced by `unsubscribed`.",
        False,
        ("private", "insufficient_scope", "token_expired", "token_revoked"),
    ),
)
"""How an event stream ends beside `CLOSES`; a WebSocket goes on then."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An HTTP answer in place of the handshake's 101 or a stream's 200; its body is that of every error."""

    status: int
    error: str
    meaning: str
    headers: tuple[str, ...] = ()


_TOO_SLOW = Refusal(408, "request_timeout", "The request did not arrive, or could not be decided, in time.")
_CROWDED = (
    Refusal(429, "slow_down", "Too many connections, or bad tokens, from this address.", ("Retry-After",)),
    Refusal(431, "invalid_request", "The head of the request is too large."),
    Refusal(500, "internal_error", "A bug in the broker."),
    Refusal(503, "unavailable", "The gateway is full, or cannot decide at present.", ("Retry-After",)),
)

REFUSALS = (
    Refusal(
        400,
        "invalid_request",
        "The request is not a valid handshake (RFC 6455, section 4.2.1), or `batch` or `alive` is not a truth"
        " value.",
    ),
    Refusal(401, "invalid_token", "The token is malformed, expired or revoked.", ("WWW-Authenticate",)),
    Refusal(403, "insufficient_scope", "The account does not allow this `Origin`."),
    Refusal(404, "not_found", "The path does not exist, or the host name has no account."),
    Refusal(405, "method_not_allowed", "The method is not GET.", ("Allow",)),
    _TOO_SLOW,
    Refusal(426, "upgrade_required", "No `Upgrade: websocket`.", ("Upgrade",)),
    Refusal(426, "invalid_request", "The WebSocket version is not 13.", ("Sec-WebSocket-Version", "Upgrade")),
    *_CROWDED,
)
"""What a gateway answers in place of 101."""

STREAM_REFUSALS = (
    Refusal(400, "invalid_request", "The request is invalid; `errors` names the field."),
    Refusal(
        401,
        "invalid_token",
        "The token is malformed, expired or revoked, or there is none and the program is not public.",
        ("WWW-Authenticate",),
    ),
    Refusal(
        403,
        "insufficient_scope",
        "The token does not permit it, or the account does not allow this `Origin`.",
    ),
    Refusal(
        404,
        "not_found",
        "The program does not exist or is not visible to the caller, or the host name has no account.",
    ),
    Refusal(405, "method_not_allowed", "The method is neither GET nor OPTIONS.", ("Allow",)),
    _TOO_SLOW,
    *_CROWDED,
)
"""What a gateway answers in place of an event stream."""
