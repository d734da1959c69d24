"""The calls on projects, reached as `client.projects`."""

from collections.abc import Mapping
from typing import Any

from broker.client import query
from broker.client.engine import Call, Group
from broker.client.models import Program, Project, User
from broker.client.query import UNSET, Unset
from broker.client.wire import NOTHING


class Projects(Group):
    """Projects of the account."""

    async def get(self, project_id: str) -> Project:
        """One project. Raises NotFound."""
        return await self._get(query.path("projects", project_id), Project, is_tagged=True)

    async def create(
        self,
        name: str,
        *,
        project_id: str | None = None,
        description: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Project:
        """Create a project; without `project_id` the broker makes an id. Raises Conflict when it is taken."""
        optional = {"id": project_id, "description": description, "metadata": metadata}
        body = {"name": name} | {field: value for field, value in optional.items() if value is not None}
        return await self._create("/projects", Project, body, idempotency_key, is_tagged=True)

    async def update(
        self,
        project_id: str,
        *,
        name: str | Unset = UNSET,
        description: str | Unset | None = UNSET,
        metadata: Mapping[str, Any] | Unset | None = UNSET,
        if_match: str | None = None,
        idempotency_key: str | None = None,
    ) -> Project:
        """Change what is given; None clears description and metadata.

        Args:
            if_match: the `etag` of the project as the caller knows it.

        Raises:
            NotFound: no such project.
            PreconditionFailed: it has changed since.
        """
        values = {"name": name, "description": description, "metadata": metadata}
        target = query.path("projects", project_id)
        return await self._update(target, Project, values, idempotency_key, if_match, is_tagged=True)

    async def delete(
        self, project_id: str, *, cascade: bool = False, idempotency_key: str | None = None
    ) -> None:
        """Delete a project, with `cascade` its programs. Raises NotFound, Conflict if it has programs."""
        target, parameters = query.path("projects", project_id), {"cascade": cascade or None}
        call = Call("DELETE", target, NOTHING, query=parameters, key=idempotency_key)
        await self._engine.send(call)

    async def list_users(self, project_id: str) -> tuple[User, ...]:
        """The users who belong to the project, by name. Raises NotFound."""
        target = query.path("projects", project_id, "users")
        return await self._get(target, tuple[User, ...])

    async def list_programs(self, project_id: str) -> tuple[Program, ...]:
        """All programs of the project, newest first. Raises NotFound."""
        target = query.path("projects", project_id, "programs")
        return await self._get(target, tuple[Program, ...])

    async def list(self) -> tuple[Project, ...]:
        """The projects that the caller belongs to, or all for an admin, by id."""
        return await self._get("/projects", tuple[Project, ...])
