"""The results of calls and the content of notifications: frozen values, one class per resource.

`timestamp` and `timecode` are milliseconds since 1970-01-01T00:00:00Z. `broker.client.wire` has the rules of
reading.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from broker.client.cursor import Cursor
from broker.client.wire import Model

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event to publish. The broker fills in the times that are None."""

    event: str
    metadata: Mapping[str, Any] | None = None
    timestamp: int | None = None
    timecode: int | None = None

    def body(self) -> dict[str, Any]:
        """Its fields under their wire names, absent ones left out."""
        fields = {
            "event": self.event,
            "timestamp": self.timestamp,
            "timecode": self.timecode,
            "metadata": None if self.metadata is None else dict(self.metadata),
        }
        return {name: value for name, value in fields.items() if value is not None}


class Event(Model, frozen=True):
    """A stored event; `seq` counts 1, 2, 3 … within `epoch`."""

    seq: int
    epoch: str
    id: str
    program_id: str
    created_time: datetime
    timestamp: int
    timecode: int
    event: str
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)


class EventUpdated(Model, frozen=True):
    """An event was changed. `event` is its new state; `event.seq` is the change's place, not its own."""

    event: Event


class EventDeleted(Model, frozen=True):
    """An event was deleted."""

    seq: int
    epoch: str
    program_id: str
    id: str


class EventsDeleted(Model, frozen=True):
    """All events were deleted; `epoch` is the new one, and its first push has seq 1."""

    program_id: str
    deleted: int
    epoch: str


class HistoryReplaced(Model, frozen=True):
    """An import replaced the events, or the broker has lost some that were told; read them by REST.

    The next push has `seq + 1` of `epoch`.
    """

    program_id: str
    epoch: str
    seq: int


Change = Event | EventUpdated | EventDeleted | EventsDeleted | HistoryReplaced
"""Everything that a subscription with `changes=True` yields."""


def position(change: Change) -> Cursor:
    """Where in the history a change stands; what comes next is `seq + 1` of `epoch`."""
    match change:
        case EventUpdated(event):
            return Cursor(event.epoch, event.seq, event.id)
        case EventsDeleted():
            return Cursor(change.epoch, 0)
        case HistoryReplaced():
            return Cursor(change.epoch, change.seq)
        case _:
            return Cursor(change.epoch, change.seq, change.id or None)


class Program(Model, frozen=True):
    """A stored program; `live` is derived from the scheduled times by the broker's clock."""

    id: str
    name: str
    scheduled_start_time: datetime | None
    scheduled_end_time: datetime | None
    project_id: str | None
    access: str
    metadata: dict[str, Any] | None
    created_time: datetime
    updated_time: datetime
    live: bool


class User(Model, frozen=True):
    """A user of the account."""

    id: str
    username: str
    role: str
    name: str | None = None
    email: str | None = None
    project_ids: tuple[str, ...] = ()


class ApiToken(Model, frozen=True):
    """An API token of the caller. `token` is its secret, which only its making tells."""

    id: str
    name: str
    created_time: datetime
    expires: datetime | None = None
    token: str | None = None

    def __repr__(self) -> str:
        return f"ApiToken(id={self.id!r}, name={self.name!r}, expires={self.expires!r})"


@dataclass(frozen=True, slots=True)
class SourceReply:
    """What a data source's server replied; `content` is not read further."""

    status: int
    content_type: str
    content: bytes


class AnalyticsSite(Model, frozen=True):
    """What a project's analytics site is like.

    Attributes:
        status: `ok`, `incomplete`, `errors` or `not-created`; `message` says what it follows from.
        site, dimensions, reports: as Matomo describes them.
        dimension_ids: by scope (`visit`, `action`), then by camelCase name.
        report_ids: by camelCase name.
    """

    status: str
    message: str
    id_site: str | None
    site: dict[str, Any] | None
    dimensions: tuple[dict[str, Any], ...]
    dimension_ids: dict[str, dict[str, str]]
    reports: tuple[dict[str, Any], ...]
    report_ids: dict[str, str]
    missing_reports: tuple[dict[str, Any], ...]
    bad_reports: tuple[dict[str, Any], ...]
    proxy_has_access: bool
    missing_dimensions: tuple[dict[str, Any], ...] = ()
    bad_dimensions: tuple[dict[str, Any], ...] = ()


class Page(Model, Generic[T], frozen=True):
    """One page of a filtered list; `total` counts all matches."""

    items: tuple[T, ...]
    total: int
    limit: int
    skip: int


class Token(Model, frozen=True):
    """An access token and how many seconds it lives from its issue."""

    access_token: str = msgspec.field(name="access_token")
    expires_in_s: int = msgspec.field(name="expires_in")

    def __repr__(self) -> str:
        return f"Token(access_token=…, expires_in_s={self.expires_in_s})"


class LastUpdate(Model, frozen=True):
    """When and where a program last changed; `timestamp_ms` is None before its first change."""

    program_id: str
    epoch: str
    seq: int
    timestamp_ms: int | None = msgspec.field(name="timestamp")

    @property
    def cursor(self) -> Cursor:
        """The position, good as `since` of a subscription."""
        return Cursor(self.epoch, self.seq)


class Imported(Model, frozen=True):
    """How many events an import deleted and stored, and the epoch that began with it."""

    deleted: int
    imported: int
    epoch: str


class Tagged(Model, frozen=True, kw_only=True):
    """A value that may know the `etag` of its state; lists know none. It is equal with it and without it."""

    etag: str | None = None

    def __eq__(self, other: object) -> bool:
        fields = (name for name in self.__struct_fields__ if name != "etag")
        return type(other) is type(self) and all(
            getattr(self, name) == getattr(other, name) for name in fields
        )


class Project(Tagged, frozen=True):
    """What groups programs, users, revisions and stored values."""

    id: str
    name: str
    description: str | None
    metadata: dict[str, Any]
    created_time: datetime
    updated_time: datetime


class StoredValue(Model, frozen=True):
    """A value that the clients of a project share."""

    id: str
    metadata: dict[str, Any]
    created_time: datetime


class LiveRevision(Tagged, frozen=True):
    """What end users see of a published application revision."""

    id: str
    project_id: str
    title: str | None
    description: str | None
    version: str
    status: str
    content: dict[str, Any]
    created_time: datetime
    updated_time: datetime


class Revision(LiveRevision, frozen=True):
    """A version of a project's application; `status` is draft or published, the users are ids."""

    created_by: str
    updated_by: str


class ServerTime(Model, frozen=True):
    """The broker's clock, and the caller's at sending, in milliseconds."""

    server_time_ms: int = msgspec.field(name="serverTime")
    request_time_ms: int | None = msgspec.field(name="requestTime", default=None)


class Version(Model, frozen=True):
    """What is running."""

    version: str
    build_number: str
    build_date: str


class FaceHealth(Model, frozen=True):
    """Face detection: its models, or why there are none, and what computes on the node that replied."""

    models: str
    providers: tuple[str, ...] = ()


class MaintenanceState(Model, frozen=True):
    """That the broker refuses changes: why, after how many seconds to try again, and since when."""

    message: str
    retry_after: int
    since: datetime


class Health(Model, frozen=True):
    """How the broker is.

    `status` is "ok" or "unavailable"; `parts` are those that the broker needs, each "ok" or what is wrong
    with it. It needs neither `images` nor `faces`. `maintenance` is None while changes are accepted.
    """

    status: str
    parts: dict[str, str]
    images: str
    faces: FaceHealth
    maintenance: MaintenanceState | None = None


class GatewayLoad(Model, frozen=True):
    """A gateway and how many connections it has; `stream_url` is of the program's event stream there."""

    url: str
    connections: int = 0
    stream_url: str | None = None


class GatewayChoice(Model, frozen=True):
    """Where to open a WebSocket: `url` first, the others of `urls` when it does not answer."""

    url: str
    servers: tuple[GatewayLoad, ...] = ()
    retry_after_ms: int = 0

    @property
    def urls(self) -> tuple[str, ...]:
        """Of all gateways."""
        return tuple(server.url for server in self.servers) or (self.url,)
