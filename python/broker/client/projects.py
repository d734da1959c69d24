"""The calls on projects, reached as `client.projects`."""

from collections.abc import Mapping
from typing import Any

from broker.client import query
from broker.client.engine import Call, Engine
from broker.client.models import Program, Project, SourceReply, User, list_of
from broker.client.query import UNSET, Unset
from broker.client.retry import Safety


class Projects:
    """Projects of the account. Every method may raise what `Engine.send` raises."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def get(self, project_id: str) -> Project:
        """One project. Raises NotFound."""
        return await self._engine.send(
            Call("GET", query.path("projects", project_id), Project.parse, is_tagged=True)
        )

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
        call = Call("POST", "/projects", Project.parse, body=body, key=idempotency_key, is_tagged=True)
        return await self._engine.send(call)

    async def request(
        self,
        project_id: str,
        version: str,
        data_source_id: str,
        *,
        method: str = "GET",
        parameters: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> SourceReply:
        """Have the broker send a request of a revision's data source; what is given overrides its defaults.

        Only a GET is repeated when its outcome is unknown.

        Raises:
            ApiError: the broker's refusal, or an upstream's status of 400 or more; `status` is that one.
        """
        call = Call(
            method,
            query.path("projects", project_id, "application", "requests", version, data_source_id),
            bytes,
            query=parameters or {},
            body=body,
            headers=headers or {},
            own_safety=Safety.REPEATABLE if method == "GET" else Safety.ONCE,
            is_forwarded=True,
        )
        async with self._engine.stream(call) as reply:
            content = await reply.aread()
        return SourceReply(reply.status_code, reply.headers.get("Content-Type", ""), content)

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
        body = query.fields({"name": name, "description": description, "metadata": metadata})
        call = Call(
            "PUT",
            query.path("projects", project_id),
            Project.parse,
            body=body,
            headers=query.match(if_match),
            key=idempotency_key,
            is_tagged=True,
        )
        return await self._engine.send(call)

    async def delete(
        self, project_id: str, *, cascade: bool = False, idempotency_key: str | None = None
    ) -> None:
        """Delete a project, with `cascade` its programs. Raises NotFound, Conflict if it has programs."""
        target, parameters = query.path("projects", project_id), {"cascade": cascade or None}
        call = Call("DELETE", target, lambda _: None, query=parameters, key=idempotency_key)
        await self._engine.send(call)

    async def users(self, project_id: str) -> tuple[User, ...]:
        """The users who belong to the project, by name. Raises NotFound."""
        target = query.path("projects", project_id, "users")
        return await self._engine.send(Call("GET", target, list_of(User.parse)))

    async def programs(self, project_id: str) -> tuple[Program, ...]:
        """All programs of the project, newest first. Raises NotFound."""
        target = query.path("projects", project_id, "programs")
        return await self._engine.send(Call("GET", target, list_of(Program.parse)))

    async def list(self) -> tuple[Project, ...]:
        """The projects that the caller belongs to, or all for an admin, by id."""
        return await self._engine.send(Call("GET", "/projects", list_of(Project.parse)))
