"""Examples of all results and notifications, by type, for the OpenAPI and AsyncAPI documents.

They are about the same program, project and people as the examples of requests, which stand beside the
operations.
"""

from types import UnionType
from typing import Any, get_args, get_origin

from broker.domain.api_tokens import ApiToken, NewApiToken
from broker.domain.events import Event
from broker.domain.programs import ProgramResource
from broker.domain.projects import Project
from broker.domain.revisions import LiveRevision, Revision
from broker.domain.stored_values import StoredValue
from broker.domain.users import User
from broker.resources import (
    analytics_reports,
    analytics_sites,
    audit,
    connect,
    event_lists,
    events,
    images,
    imports,
    programs,
    statistics,
    status,
    tokens,
)
from broker.voting.polls.integrity import IntegrityReport
from broker.voting.resources import responses, visitors
from broker.voting.rules import LiveResults, ResponseReport

_ID = "0198b2c4-7a10-7c3e-9d1f-5b6a7c8d9e0f"
_USER_ID = "0198b2c4-11aa-7b2c-8d3e-4f5a6b7c8d9e"
EPOCH = "0198b2c4-6f00-7a11-8b22-9c33ad44be55"
_STREAM_URL = "http://localhost:8001/api/v1/programs/final-2026/events/stream"
_TIME = "2026-07-19T18:00:00.000Z"
_TIME_MS = 1784484000000
_CREATED = "2026-07-01T09:30:00.000Z"
_MADE = {"createdTime": _CREATED, "updatedTime": _CREATED}
_PAGE = {"total": 1, "limit": 20, "skip": 0}

EVENT: dict[str, Any] = {
    "seq": 1,
    "epoch": EPOCH,
    "id": _ID,
    "programId": "final-2026",
    "createdTime": _TIME,
    "timestamp": _TIME_MS,
    "timecode": _TIME_MS,
    "event": "Score#update",
    "metadata": {"home": 2, "away": 1},
}
_PROGRAM = {
    "id": "final-2026",
    "name": "The final",
    "scheduledStartTime": _TIME,
    "scheduledEndTime": "2026-07-19T21:00:00.000Z",
    "projectId": "football",
    "access": "public",
    "metadata": None,
    **_MADE,
    "live": True,
}
_LIVE_REVISION = {
    "id": _ID,
    "projectId": "football",
    "title": "Season 2026",
    "description": None,
    "version": "1",
    "status": "published",
    "content": {"theme": "dark"},
    **_MADE,
}
_API_TOKEN = {
    "id": _ID,
    "name": "Graphics controller",
    "createdTime": _CREATED,
    "expires": "2036-07-19T22:00:00.000Z",
}

_EXAMPLES: dict[Any, Any] = {
    str: "producer",
    ApiToken: _API_TOKEN,
    NewApiToken: _API_TOKEN | {"token": "brk_3kX9vQm2Zr8Lw1Tn5Yb7Hc4Jd6Pf0Sg2Vu8Ka1Me3Rq"},
    Event: EVENT,
    analytics_reports.Script: "(function (window, document) {\n…\n})(window, document);\n",
    analytics_reports.Table: {"nb_uniq_visitors": 8120, "nb_visits": 9345, "nb_actions": 41280},
    analytics_sites.SiteStatus: {
        "status": "incomplete",
        "message": "the report Programs is missing",
        "idSite": "3",
        "site": {"idsite": 3, "name": "Football", "group": "football", "timezone": "UTC"},
        "dimensions": [
            {"idcustomdimension": "1", "idsite": "3", "name": "Program", "scope": "action", "active": True}
        ],
        "dimensionIds": {"visit": {}, "action": {"program": "1"}},
        "missingDimensions": [],
        "badDimensions": [],
        "reports": [],
        "reportIds": {},
        "badReports": [],
        "missingReports": [{"name": "Programs"}],
        "proxyHasAccess": True,
    },
    LiveResults: {
        "accountId": "demo",
        "projectId": "football",
        "measureName": "whoWins",
        "results": {"0": 812, "1": 455},
        "total": 1267,
    },
    LiveRevision: _LIVE_REVISION,
    ProgramResource: _PROGRAM,
    ResponseReport: {
        "accountId": "demo",
        "projectId": "football",
        "programId": "final-2026",
        "responses": [
            {
                "measureName": "whoWins",
                "isDeclared": True,
                "programId": "final-2026",
                "contextId": _ID,
                "options": [
                    {"measureValue": 0, "total": 812, "label": "Home"},
                    {"measureValue": 1, "total": 455, "label": "Away"},
                ],
                "total": 1267,
                "title": "Who wins?",
                "impressions": {
                    "measureName": "whoWins",
                    "total": 5210,
                    "uniques": 4987,
                    "sessions": 5102,
                },
            }
        ],
    },
    Project: {
        "id": "football",
        "name": "Football",
        "description": "All matches of the season",
        "metadata": {},
        **_MADE,
    },
    Revision: _LIVE_REVISION | {"createdBy": _USER_ID, "updatedBy": _USER_ID},
    StoredValue: {"id": "line-up", "metadata": {"home": ["Kim", "Vo"]}, "createdTime": _TIME},
    User: {
        "id": _USER_ID,
        "username": "producer",
        "role": "producer",
        "name": "Kim Vo",
        "email": "kim@example.com",
        "projectIds": ["football"],
        **_MADE,
    },
    audit.AuditPage: {
        "items": [
            {
                "id": 1,
                "time": _CREATED,
                "userId": _USER_ID,
                "username": "admin",
                "action": "user.created",
                "targetType": "user",
                "targetId": _ID,
                "details": {"role": "producer"},
            }
        ],
        **_PAGE,
    },
    connect.Connect: {
        "url": "ws://localhost:8001/api/v1/ws",
        "servers": [
            {"url": "ws://localhost:8001/api/v1/ws", "connections": 1200, "streamUrl": _STREAM_URL},
        ],
        "retryAfterMs": 0,
        "streamUrl": _STREAM_URL,
    },
    events.Deleted: {"deleted": 1},
    events.EventBatch: {"events": [EVENT]},
    event_lists.EventExport: {"programId": "final-2026", "exportedTime": _TIME, "events": [EVENT]},
    events.EventPage: {"items": [EVENT], **_PAGE},
    imports.ImportResult: {"deleted": 1, "imported": 1, "epoch": EPOCH},
    programs.LastUpdate: {"programId": "final-2026", "timestamp": _TIME_MS, "seq": 1, "epoch": EPOCH},
    programs.ProgramPage: {"items": [_PROGRAM], **_PAGE},
    responses.Counted: {"accepted": 2, "duplicates": 0},
    visitors.Visitor: {
        "visitorId": "AWqEpQAhuFxyyFt5UE6mUfVrmVLnvtmXDqDf3HvYx-9s",
        "expires": 1787208960000,
    },
    IntegrityReport: {
        "accountId": "demo",
        "projectId": "football",
        "programId": "final-2026",
        "polls": [
            {
                "measureName": "whoWins",
                "contextId": "0198b2c4-7a10-7c3e-9d1f-5b6a7c8d9e0f",
                "title": "Who wins?",
                "visitors": "issued",
                "isDeclared": True,
                "isWatched": True,
                "votes": 300,
                "minutes": [{"timestamp": 1784616960000, "votes": 300, "inRow": 0}],
                "networks": [120, 14],
                "otherVotes": 166,
                "inRow": 0,
                "findings": ["One network has sent 40% of the votes."],
            }
        ],
    },
    statistics.Dashboard: {
        "connections": 1200,
        "subscribers": 1100,
        "programsLive": 1,
        "eventsPerMinute": 12,
        "responsesPerMinute": 0,
        "deliveriesPerSecond": 220.0,
        "topPrograms": [{"programId": "final-2026", "subscribers": 1100, "events": 340}],
        "producersOnline": [{"userId": _USER_ID, "username": "producer", "lastSeen": _TIME}],
    },
    statistics.ImageSeries: {
        "series": [
            {
                "time": _TIME,
                "images": 5120,
                "hits": 5090,
                "errors": 2,
                "fetches": 30,
                "sentBytes": 104857600,
                "faceSearches": 28,
            }
        ]
    },
    images.WarmedImages: {
        "images": [
            {
                "url": "https://cdn.example.com/players/kim.jpg",
                "options": "w=400,h=400,fit=face",
                "status": 200,
                "error": None,
                "message": None,
            }
        ]
    },
    statistics.Series: {
        "series": [
            {
                "time": _TIME,
                "connections": 1200,
                "subscribers": 1100,
                "events": 12,
                "deliveries": 13200,
                "responses": 0,
                "impressions": 0,
            }
        ]
    },
    status.Pong: {"current_time": _TIME_MS},
    status.Health: {
        "status": "unavailable",
        "parts": {
            "database": "ok",
            "owners": "broker-owner-1 does not answer",
            "counters": "ok",
            "gateways": "ok",
            "tasks": "ok",
        },
        "images": "ok",
        "faces": {"models": "ssd", "providers": ["CPUExecutionProvider"]},
        "maintenance": {
            "message": "The database moves; back at 22:30.",
            "retryAfter": 30,
            "since": "2026-07-01T20:00:00.000Z",
        },
    },
    status.ServerTime: {"serverTime": _TIME_MS, "requestTime": 1767225600000},
    status.Version: {
        "version": "0.1.0",
        "buildNumber": "20260701093000",
        "buildDate": _CREATED,
    },
    tokens.TokenResponse: {
        "access_token": "eyJhbGciOiJFZERTQSJ9.e30.c2ln",
        "token_type": "Bearer",
        "expires_in": 3600,
    },
}

_PLACE = {"seq": 42, "epoch": EPOCH, "programId": "final-2026"}
NOTIFICATION_EXAMPLES: dict[str, dict[str, Any]] = {
    "subscribed": _PLACE | {"id": _ID, "recovered": True},
    "closed": {"code": 1012, "reason": "service_restart", "afterMs": 1_740},
    "event": EVENT,
    "eventUpdated": EVENT | {"seq": 42},
    "eventDeleted": _PLACE | {"id": _ID},
    "eventsDeleted": _PLACE | {"deleted": 340, "seq": 0},
    "historyReplaced": _PLACE,
    "programDeleted": {"programId": "final-2026"},
    "unsubscribed": {"programId": "final-2026", "reason": "token_expired"},
    "program": {"channel": "programs", "change": "live", "program": _PROGRAM},
    "stored": {
        "channel": "storage:football",
        "projectId": "football",
        "value": _EXAMPLES[StoredValue],
    },
    "resumed": {"channel": "storage:football"},
    "results": {
        "channel": "responses:final-2026",
        "programId": "final-2026",
        "results": [_EXAMPLES[LiveResults] | {"contextId": _ID, "isDeclared": True}],
    },
    "tokenExpiring": {"expiresInMs": 60_000},
    "reconnect": {"afterMs": 2_315},
    "alive": {"everyMs": 1_000},
}


def examples_of(result: Any) -> dict[str, Any]:
    """The `example` of a result type, or the `examples` of each of its alternatives.

    Raises:
        KeyError: there is none.
    """
    if isinstance(result, UnionType):
        return {"examples": {kind.__name__: {"value": _EXAMPLES[kind]} for kind in get_args(result)}}
    if get_origin(result) is list:
        return {"example": [_EXAMPLES[get_args(result)[0]]]}
    return {"example": _EXAMPLES[result]}
