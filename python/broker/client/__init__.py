"""The SDK: REST calls and WebSocket subscriptions that recover, async and sync.

It needs httpx, websockets and msgspec and nothing of the server, so that a producer's script or an overlay's
test rig stays light. Calls go by resource and verb; publish and subscribe have a short form::

    async with AsyncClient("http://demo.localhost:8000", username="producer", password="…") as client:
        await client.programs.create("final-2026", "The final")
        await client.publish("final-2026", "Score#update", {"home": 1, "away": 0})
        async for event in client.subscribe("final-2026"):
            print(event.seq, event.event, event.metadata)

`Client` is the same without `async`. Errors are drawn in `broker.client.errors`.
"""

from broker.client.aio import AsyncClient
from broker.client.answers import (
    Answer,
    Counted,
    Impression,
    IntegrityEntry,
    IntegrityMinute,
    LiveResults,
    ReportEntry,
    ReportImpressions,
    ReportOption,
    Visitor,
)
from broker.client.audit import AuditEntry
from broker.client.cursor import Cursor
from broker.client.errors import (
    ApiError,
    BadCredentials,
    ClientError,
    Conflict,
    ConnectionFailed,
    ConnectionLost,
    FieldFault,
    HistoryLost,
    InsufficientScope,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    PayloadTooLarge,
    PreconditionFailed,
    ProgramDeleted,
    ProtocolError,
    RpcError,
    ServerError,
    SlowDown,
    SubscriptionEnded,
    Unauthenticated,
    Unavailable,
    Unsubscribed,
)
from broker.client.images import FaceBox, Picture, PictureDescription, WarmedPicture
from broker.client.models import (
    AnalyticsSite,
    ApiToken,
    Change,
    Event,
    EventDeleted,
    EventsDeleted,
    EventUpdated,
    FaceHealth,
    GatewayChoice,
    GatewayLoad,
    Health,
    HistoryReplaced,
    Imported,
    LastUpdate,
    LiveRevision,
    NewEvent,
    Page,
    Program,
    Project,
    Revision,
    ServerTime,
    SourceReply,
    StoredValue,
    Token,
    User,
    Version,
)
from broker.client.retry import RetryPolicy
from broker.client.socket import Notification, Socket, SocketConfig
from broker.client.statistics import Dashboard, ImagesPoint, OnlineProducer, StatisticsPoint, TopProgram
from broker.client.subscription import Subscription, SubscriptionConfig
from broker.client.sync import Client
from broker.client.timeline import Seek, Timeline
from broker.concurrency.back_off import Backoff

__all__ = [
    "AnalyticsSite",
    "Answer",
    "ApiError",
    "ApiToken",
    "AsyncClient",
    "AuditEntry",
    "Backoff",
    "BadCredentials",
    "Change",
    "Client",
    "ClientError",
    "Conflict",
    "ConnectionFailed",
    "ConnectionLost",
    "Counted",
    "Cursor",
    "Dashboard",
    "Event",
    "EventDeleted",
    "EventUpdated",
    "EventsDeleted",
    "FaceBox",
    "FaceHealth",
    "FieldFault",
    "GatewayChoice",
    "GatewayLoad",
    "Health",
    "HistoryLost",
    "HistoryReplaced",
    "ImagesPoint",
    "Imported",
    "Impression",
    "InsufficientScope",
    "InvalidRequest",
    "LastUpdate",
    "IntegrityEntry",
    "IntegrityMinute",
    "LiveResults",
    "LiveRevision",
    "NewEvent",
    "NotFound",
    "OutcomeUnknown",
    "Notification",
    "OnlineProducer",
    "Page",
    "PayloadTooLarge",
    "Picture",
    "PictureDescription",
    "PreconditionFailed",
    "Program",
    "ProgramDeleted",
    "Project",
    "ProtocolError",
    "ReportEntry",
    "ReportImpressions",
    "ReportOption",
    "RetryPolicy",
    "Revision",
    "RpcError",
    "Seek",
    "ServerError",
    "ServerTime",
    "SlowDown",
    "Socket",
    "SocketConfig",
    "StoredValue",
    "StatisticsPoint",
    "Subscription",
    "SubscriptionConfig",
    "SourceReply",
    "SubscriptionEnded",
    "Timeline",
    "Token",
    "TopProgram",
    "Unauthenticated",
    "Unavailable",
    "Unsubscribed",
    "User",
    "Version",
    "WarmedPicture",
    "Visitor",
]
