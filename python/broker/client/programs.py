"""The calls on programs, reached as `client.programs`."""

from collections.abc import Iterable, Mapping
from typing import Any

from broker.client import query
from broker.client.engine import Group
from broker.client.models import LastUpdate, Page, Program
from broker.client.query import UNSET, TimeLike, Unset


class Programs(Group):
    """Programs of the account."""

    async def create(
        self,
        program_id: str,
        name: str,
        *,
        scheduled_start_time: TimeLike | None = None,
        scheduled_end_time: TimeLike | None = None,
        project_id: str | None = None,
        access: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Program:
        """Create a program, public unless `access` is `private`. Raises Conflict when the id is taken."""
        optional = {
            "scheduledStartTime": scheduled_start_time,
            "scheduledEndTime": scheduled_end_time,
            "projectId": project_id,
            "access": access,
            "metadata": metadata,
        }
        given = {name: value for name, value in optional.items() if value is not None}
        body = query.fields({"id": program_id, "name": name, **given})
        return await self._create("/programs", Program, body, idempotency_key)

    async def get(self, program_id: str) -> Program:
        """One program. Raises NotFound."""
        return await self._get(query.path("programs", program_id), Program)

    async def update(
        self,
        program_id: str,
        name: str,
        scheduled_start_time: TimeLike | None,
        scheduled_end_time: TimeLike | None,
        *,
        project_id: str | Unset | None = UNSET,
        access: str | Unset = UNSET,
        metadata: Mapping[str, Any] | Unset | None = UNSET,
        idempotency_key: str | None = None,
    ) -> Program:
        """Replace name and times; the others keep their value unless given, and None clears them."""
        values = {
            "id": program_id,
            "name": name,
            "scheduledStartTime": scheduled_start_time,
            "scheduledEndTime": scheduled_end_time,
            "projectId": project_id,
            "access": access,
            "metadata": metadata,
        }
        return await self._update(query.path("programs", program_id), Program, values, idempotency_key)

    async def delete(self, program_id: str, *, idempotency_key: str | None = None) -> None:
        """Delete a program and all its events. Raises NotFound."""
        await self._delete(query.path("programs", program_id), idempotency_key)

    async def list(self) -> tuple[Program, ...]:
        """The programs that have not ended and that the caller may publish to, newest first."""
        return await self._get("/programs", tuple[Program, ...])

    async def filter(
        self,
        *,
        search: str | None = None,
        ids: Iterable[str] | None = None,
        status: str | None = None,
        project_id: str | None = None,
        from_time: TimeLike | None = None,
        to_time: TimeLike | None = None,
        live: bool | None = None,
        sort: str | None = None,
        order: str | None = None,
        limit: int | None = None,
        skip: int | None = None,
    ) -> Page[Program]:
        """Search programs; `project_id="undefined"` selects those without one."""
        parameters = query.filters(
            search=search, ids=ids, status=status, sort=sort, order=order, limit=limit, skip=skip
        )
        parameters |= {
            "projectId": project_id,
            "from": query.time_text(from_time),
            "to": query.time_text(to_time),
            "live": live,
        }
        return await self._get("/programs/filter", Page[Program], parameters)

    async def get_last_update(self, program_id: str) -> LastUpdate:
        """When and where the program last changed; its cursor is good as `since`."""
        return await self._get(query.path("programs", program_id, "lastUpdate"), LastUpdate)
