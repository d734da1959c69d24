"""The calls on stored values, reached as `client.storage`."""

from collections.abc import Mapping
from typing import Any

from broker.client import query
from broker.client.engine import Engine, Group
from broker.client.models import StoredValue
from broker.ids import IdSource


class Storage(Group):
    """Values that the clients of a project share."""

    def __init__(self, engine: Engine, ids: IdSource) -> None:
        super().__init__(engine)
        self._ids = ids

    async def get(self, project_id: str, item_id: str) -> StoredValue:
        """One value. Caches on the way may answer what was stored up to a day ago. Raises NotFound."""
        target = query.path("storage", project_id, item_id)
        return await self._get(target, StoredValue)

    async def store(
        self,
        project_id: str,
        metadata: Mapping[str, Any],
        *,
        item_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> StoredValue:
        """Store a value; without `item_id` it gets one.

        A caller with a token replaces what is stored under the id; one without cannot. The id is made here,
        so that a repeated try adds nothing twice.

        Raises:
            NotFound: no such project.
            Conflict: without a token, the id is taken.
            PayloadTooLarge: the value is too large, or the project is full; without a token, what such
                callers may store is stored.
        """
        body = {"id": item_id or self._ids.uuid7(), "metadata": dict(metadata)}
        target = query.path("storage", project_id)
        return await self._create(target, StoredValue, body, idempotency_key)

    async def delete(self, project_id: str, item_id: str, *, idempotency_key: str | None = None) -> None:
        """Delete a value. Caches on the way may answer it for up to a day. Raises NotFound."""
        await self._delete(query.path("storage", project_id, item_id), idempotency_key)
