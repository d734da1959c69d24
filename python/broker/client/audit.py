"""The calls on the audit log, reached as `client.audit`."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from broker.client import query
from broker.client.engine import Call, Engine
from broker.client.models import Page, _Reading, parse_time
from broker.client.query import TimeLike


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One administrative change. `user_id` is None for the operator at the command line."""

    id: int
    time: datetime
    user_id: str | None
    username: str
    action: str
    target_type: str
    target_id: str
    details: dict[str, Any]

    @classmethod
    def parse(cls, raw: Any) -> "AuditEntry":
        """Read the wire's object."""
        with _Reading("audit entry"):
            return cls(
                id=raw["id"],
                time=parse_time(raw["time"]),
                user_id=raw["userId"],
                username=raw["username"],
                action=raw["action"],
                target_type=raw["targetType"],
                target_id=raw["targetId"],
                details=raw["details"],
            )


class AuditLog:
    """The log of administrative changes, for admins."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def filter(
        self,
        *,
        actions: Iterable[str] | None = None,
        target_id: str | None = None,
        user_id: str | None = None,
        search: str | None = None,
        from_time: TimeLike | None = None,
        to_time: TimeLike | None = None,
        order: str | None = None,
        limit: int | None = None,
        skip: int | None = None,
    ) -> Page[AuditEntry]:
        """Search the log; the newest come first unless `order` is `asc`. Raises InsufficientScope."""
        parameters = {
            "action": None if actions is None else ",".join(actions),
            "targetId": target_id,
            "userId": user_id,
            "search": search,
            "from": query.time_text(from_time),
            "to": query.time_text(to_time),
            "order": order,
            "limit": limit,
            "skip": skip,
        }
        call = Call("GET", "/audit", lambda raw: Page.parse(raw, AuditEntry.parse), query=parameters)
        return await self._engine.send(call)
