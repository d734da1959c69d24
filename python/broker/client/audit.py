"""The calls on the audit log, reached as `client.audit`."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from broker.client import query
from broker.client.engine import Group
from broker.client.models import Page
from broker.client.query import TimeLike
from broker.client.wire import Model


class AuditEntry(Model, frozen=True):
    """One administrative change. `user_id` is None for the operator at the command line."""

    id: int
    time: datetime
    user_id: str | None
    username: str
    action: str
    target_type: str
    target_id: str
    details: dict[str, Any]


class Audit(Group):
    """The log of administrative changes, for admins."""

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
        return await self._get("/audit", Page[AuditEntry], parameters)
