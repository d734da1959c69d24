"""What calls return: frozen values, one class a resource.

Fields that a newer broker adds are passed over; a field that is missing or of the wrong type is a
`ProtocolError`. Datetimes are aware and in UTC; `timestamp` and `timecode` are milliseconds since
1970-01-01T00:00:00Z.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

from broker.client.errors import ProtocolError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cursor:
    """A position in a program's history: everything up to and including `seq` of `epoch` is known.

    `id` is that of the message at `seq` where it was seen. The broker compares it: another one there means
    that it has lost history, and whoever comes back is told so. Cursors are equal with it and without it.
    """

    epoch: str
    seq: int
    id: str | None = field(default=None, compare=False)


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


@dataclass(frozen=True, slots=True)
class Event:
    """A stored event; `seq` counts 1, 2, 3 … within `epoch`."""

    seq: int
    epoch: str
    id: str
    program_id: str
    created_time: datetime
    timestamp: int
    timecode: int
    event: str
    metadata: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, raw: Any) -> "Event":
        """Read the wire's object."""
        with _Reading("event"):
            return cls(
                seq=raw["seq"],
                epoch=raw["epoch"],
                id=raw["id"],
                program_id=raw["programId"],
                created_time=parse_time(raw["createdTime"]),
                timestamp=raw["timestamp"],
                timecode=raw["timecode"],
                event=raw["event"],
                metadata=raw.get("metadata") or {},
            )


@dataclass(frozen=True, slots=True)
class EventUpdated:
    """An event was changed. `event` is its new state; `event.seq` is the change's place, not its own."""

    event: Event


@dataclass(frozen=True, slots=True)
class EventDeleted:
    """An event was deleted."""

    seq: int
    epoch: str
    program_id: str
    id: str


@dataclass(frozen=True, slots=True)
class EventsDeleted:
    """All events were deleted; `epoch` is the new one, and its first push has seq 1."""

    program_id: str
    deleted: int
    epoch: str


@dataclass(frozen=True, slots=True)
class HistoryReplaced:
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


@dataclass(frozen=True, slots=True)
class Program:
    """A stored program; `live` is derived from the scheduled times by the broker's clock."""

    id: str
    name: str
    scheduled_start_time: datetime | None
    scheduled_end_time: datetime | None
    project_id: str | None
    access: str
    metadata: dict[str, Any]
    created_time: datetime
    updated_time: datetime
    live: bool

    @classmethod
    def parse(cls, raw: Any) -> "Program":
        """Read the wire's object."""
        with _Reading("program"):
            return cls(
                id=raw["id"],
                name=raw["name"],
                scheduled_start_time=_optional_time(raw.get("scheduledStartTime")),
                scheduled_end_time=_optional_time(raw.get("scheduledEndTime")),
                project_id=raw.get("projectId"),
                access=raw.get("access") or "public",
                metadata=raw.get("metadata") or {},
                created_time=parse_time(raw["createdTime"]),
                updated_time=parse_time(raw.get("updatedTime") or raw["createdTime"]),
                live=bool(raw.get("live")),
            )


@dataclass(frozen=True, slots=True)
class User:
    """A user of the account."""

    id: str
    username: str
    role: str
    name: str | None
    email: str | None
    project_ids: tuple[str, ...]

    @classmethod
    def parse(cls, raw: Any) -> "User":
        """Read the wire's object."""
        with _Reading("user"):
            projects = tuple(raw.get("projectIds") or ())
            return cls(raw["id"], raw["username"], raw["role"], raw.get("name"), raw.get("email"), projects)


@dataclass(frozen=True, slots=True)
class ApiToken:
    """An API token of the caller. `token` is its secret, which only its making tells."""

    id: str
    name: str
    created_time: datetime
    expires: datetime | None
    token: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, raw: Any) -> "ApiToken":
        """Read the wire's object."""
        with _Reading("API token"):
            return cls(
                id=raw["id"],
                name=raw["name"],
                created_time=parse_time(raw["createdTime"]),
                expires=_optional_time(raw.get("expires")),
                token=raw.get("token"),
            )


@dataclass(frozen=True, slots=True)
class SourceReply:
    """What a data source's server replied; `content` is not read further."""

    status: int
    content_type: str
    content: bytes


@dataclass(frozen=True, slots=True)
class AnalyticsSite:
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
    missing_dimensions: tuple[dict[str, Any], ...]
    bad_dimensions: tuple[dict[str, Any], ...]
    reports: tuple[dict[str, Any], ...]
    report_ids: dict[str, str]
    missing_reports: tuple[dict[str, Any], ...]
    bad_reports: tuple[dict[str, Any], ...]
    proxy_has_access: bool

    @classmethod
    def parse(cls, raw: Any) -> "AnalyticsSite":
        """Read the wire's object."""
        with _Reading("analytics site"):
            return cls(
                raw["status"],
                raw["message"],
                raw["idSite"],
                raw["site"],
                tuple(raw["dimensions"]),
                dict(raw["dimensionIds"]),
                tuple(raw.get("missingDimensions") or ()),
                tuple(raw.get("badDimensions") or ()),
                tuple(raw["reports"]),
                dict(raw["reportIds"]),
                tuple(raw["missingReports"]),
                tuple(raw["badReports"]),
                raw["proxyHasAccess"],
            )


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a filtered list; `total` counts all matches."""

    items: tuple[T, ...]
    total: int
    limit: int
    skip: int

    @classmethod
    def parse(cls, raw: Any, item: Callable[[Any], T]) -> "Page[T]":
        """Read the wire's object, its items by `item`."""
        with _Reading("page"):
            return cls(tuple(map(item, raw["items"])), raw["total"], raw["limit"], raw["skip"])


@dataclass(frozen=True, slots=True)
class Token:
    """An access token and how many seconds it lives from its issue."""

    access_token: str
    expires_in_s: int

    @classmethod
    def parse(cls, raw: Any) -> "Token":
        """Read the wire's object."""
        with _Reading("token"):
            return cls(raw["access_token"], int(raw["expires_in"]))

    def __repr__(self) -> str:
        return f"Token(access_token=…, expires_in_s={self.expires_in_s})"


@dataclass(frozen=True, slots=True)
class LastUpdate:
    """When and where a program last changed; `timestamp_ms` is None before its first change."""

    program_id: str
    timestamp_ms: int | None
    cursor: Cursor

    @classmethod
    def parse(cls, raw: Any) -> "LastUpdate":
        """Read the wire's object."""
        with _Reading("last update"):
            return cls(raw["programId"], raw["timestamp"], Cursor(raw["epoch"], raw["seq"]))


@dataclass(frozen=True, slots=True)
class Imported:
    """How many events an import deleted and stored, and the epoch that began with it."""

    deleted: int
    imported: int
    epoch: str

    @classmethod
    def parse(cls, raw: Any) -> "Imported":
        """Read the wire's object."""
        with _Reading("import"):
            return cls(raw["deleted"], raw["imported"], raw["epoch"])


@dataclass(frozen=True, slots=True)
class Project:
    """What groups programs, users, revisions and stored values.

    `etag` is of this state; a list knows none.
    """

    id: str
    name: str
    description: str | None
    metadata: dict[str, Any]
    created_time: datetime
    updated_time: datetime
    etag: str | None = field(default=None, compare=False)

    @classmethod
    def parse(cls, raw: Any) -> "Project":
        """Read the wire's object."""
        with _Reading("project"):
            return cls(
                id=raw["id"],
                name=raw["name"],
                description=raw.get("description"),
                metadata=raw.get("metadata") or {},
                created_time=parse_time(raw["createdTime"]),
                updated_time=parse_time(raw["updatedTime"]),
            )


@dataclass(frozen=True, slots=True)
class StoredValue:
    """A value that the clients of a project share."""

    id: str
    metadata: dict[str, Any]
    created_time: datetime

    @classmethod
    def parse(cls, raw: Any) -> "StoredValue":
        """Read the wire's object, in an answer or in a `stored` notification."""
        with _Reading("stored value"):
            return cls(raw["id"], raw["metadata"], parse_time(raw["createdTime"]))


@dataclass(frozen=True, slots=True)
class LiveRevision:
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

    @classmethod
    def parse(cls, raw: Any) -> "LiveRevision":
        """Read the wire's object."""
        with _Reading("revision"):
            return cls(**_revision_fields(raw))


@dataclass(frozen=True, slots=True)
class Revision(LiveRevision):
    """A version of a project's application; `status` is draft or published, the users are ids.

    `etag` is of this state; a list knows none.
    """

    created_by: str
    updated_by: str
    etag: str | None = field(default=None, compare=False)

    @classmethod
    def parse(cls, raw: Any) -> "Revision":
        """Read the wire's object."""
        with _Reading("revision"):
            return cls(**_revision_fields(raw), created_by=raw["createdBy"], updated_by=raw["updatedBy"])


def _revision_fields(raw: Any) -> dict[str, Any]:
    return {
        "id": raw["id"],
        "project_id": raw["projectId"],
        "title": raw.get("title"),
        "description": raw.get("description"),
        "version": raw["version"],
        "status": raw["status"],
        "content": raw["content"],
        "created_time": parse_time(raw["createdTime"]),
        "updated_time": parse_time(raw["updatedTime"]),
    }


@dataclass(frozen=True, slots=True)
class ServerTime:
    """The broker's clock, and the caller's at sending, in milliseconds."""

    server_time_ms: int
    request_time_ms: int | None

    @classmethod
    def parse(cls, raw: Any) -> "ServerTime":
        """Read the wire's object."""
        with _Reading("server time"):
            return cls(raw["serverTime"], raw.get("requestTime"))


@dataclass(frozen=True, slots=True)
class Version:
    """What is running."""

    version: str
    build_number: str
    build_date: str

    @classmethod
    def parse(cls, raw: Any) -> "Version":
        """Read the wire's object."""
        with _Reading("version"):
            return cls(str(raw["version"]), str(raw["buildNumber"]), str(raw["buildDate"]))


@dataclass(frozen=True, slots=True)
class Gateways:
    """Where to open a WebSocket: `url` first, the others of `urls` when it does not answer."""

    url: str
    urls: tuple[str, ...]
    retry_after_ms: int

    @classmethod
    def parse(cls, raw: Any) -> "Gateways":
        """Read the wire's object."""
        with _Reading("gateways"):
            urls = tuple(server["url"] for server in raw.get("servers") or ())
            return cls(raw["url"], urls or (raw["url"],), int(raw.get("retryAfterMs") or 0))


def parse_time(text: Any) -> datetime:
    """Read the wire's datetime, which is ISO 8601 in UTC with `Z`. Raises ValueError, TypeError."""
    return datetime.fromisoformat(text)


def _optional_time(text: Any) -> datetime | None:
    return None if text is None else parse_time(text)


def list_of(parse: Callable[[Any], T]) -> Callable[[Any], tuple[T, ...]]:
    """A reader of a bare array, from the reader of its items."""

    def read(raw: Any) -> tuple[T, ...]:
        if not isinstance(raw, list):
            raise ProtocolError("the broker sent no list")
        return tuple(parse(item) for item in raw)

    return read


class _Reading:
    """Turns what a malformed object causes into a `ProtocolError` that names the kind of object."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, KeyError | TypeError | ValueError | AttributeError):
            raise ProtocolError(f"the broker sent no {self._kind}: {error!r}") from error
