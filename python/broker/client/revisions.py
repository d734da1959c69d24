"""The calls on application revisions, reached as `client.revisions`."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from broker.client import query, wire
from broker.client.engine import Call, Group
from broker.client.models import LiveRevision, Revision
from broker.client.query import UNSET, Unset


class Revisions(Group):
    """Versions of a project's application. "Latest" means made last."""

    async def get_published(self, project_id: str) -> Revision:
        """The latest published revision. Raises NotFound."""
        return await self._get_one(_at(project_id))

    async def get_latest(self, project_id: str) -> Revision:
        """The latest published revision, or the latest draft when none is published. Raises NotFound."""
        return await self._get_one(_at(project_id, "version", "latest"))

    async def get_by_status(self, project_id: str, status: str) -> Revision:
        """The latest revision that is `draft` or `published`. Raises NotFound."""
        return await self._get_one(_at(project_id, "status", status))

    async def get_by_version(self, project_id: str, version: str) -> Revision:
        """The revision with this id, or else with this version. Raises NotFound."""
        return await self._get_one(_at(project_id, "version", version))

    async def get_live(self, project_id: str, version: str) -> LiveRevision:
        """What end users see of a published revision, or of `latest`; needs no token. Raises NotFound."""
        target = _at(project_id, "live", version)
        return await self._get(target, LiveRevision)

    async def get(self, project_id: str, revision_id: str) -> Revision:
        """One revision. Raises NotFound."""
        return await self._get_one(_at(project_id, "revisions", revision_id))

    async def create(
        self,
        project_id: str,
        content: Mapping[str, Any],
        *,
        title: str | None = None,
        description: str | None = None,
        version: str | None = None,
        status: str | None = None,
        idempotency_key: str | None = None,
    ) -> Revision:
        """Create a revision: a draft unless told, with the next free number unless it has a version.

        Raises:
            NotFound: no such project.
            Conflict: the version is taken.
        """
        optional = {"title": title, "description": description, "version": version, "status": status}
        given = {name: value for name, value in optional.items() if value is not None}
        target, body = _at(project_id, "revisions"), {"content": dict(content), **given}
        return await self._create(target, Revision, body, idempotency_key, is_tagged=True)

    async def update(
        self,
        project_id: str,
        revision_id: str,
        *,
        title: str | Unset | None = UNSET,
        description: str | Unset | None = UNSET,
        version: str | Unset = UNSET,
        status: str | Unset = UNSET,
        content: Mapping[str, Any] | Unset = UNSET,
        if_match: str | None = None,
        idempotency_key: str | None = None,
    ) -> Revision:
        """Change what is given; None clears title and description.

        Args:
            if_match: the `etag` of the revision as the caller knows it.

        Raises:
            NotFound: no such revision.
            PreconditionFailed: it has changed since.
            Conflict: the version is taken, or what is published would change.
        """
        values = {
            "title": title,
            "description": description,
            "version": version,
            "status": status,
            "content": content,
        }
        target = _at(project_id, "revisions", revision_id)
        return await self._update(target, Revision, values, idempotency_key, if_match, is_tagged=True)

    async def patch(
        self,
        project_id: str,
        revision_id: str,
        patch: Sequence[Mapping[str, Any]] | Mapping[str, Any],
        *,
        if_match: str | None = None,
        idempotency_key: str | None = None,
    ) -> Revision:
        """Patch a revision: a list is a JSON Patch (RFC 6902), a mapping a merge patch (RFC 7396).

        A `test` operation guards against changes in between, and so does `if_match`, the `etag` of the
        revision as the caller knows it.

        Raises:
            NotFound: no such revision.
            PreconditionFailed: it has changed since.
            Conflict: a `test` failed, or the patch does not fit.
        """
        kind = "merge-patch" if isinstance(patch, Mapping) else "json-patch"
        body = wire.encode(patch if isinstance(patch, Mapping) else list(patch))

        async def content() -> AsyncIterator[bytes]:
            yield body

        headers = {"Content-Type": f"application/{kind}+json", "Content-Length": str(len(body))}
        call = Call(
            "PATCH",
            _at(project_id, "revisions", revision_id),
            Revision,
            content=content,
            headers=headers | query.match(if_match),
            key=idempotency_key,
            is_tagged=True,
        )
        return await self._engine.send(call)

    async def _get_one(self, target: str) -> Revision:
        return await self._get(target, Revision, is_tagged=True)

    async def list(self, project_id: str, status: str | None = None) -> tuple[Revision, ...]:
        """All revisions of a project, newest first. Raises NotFound."""
        target = _at(project_id, "revisions")
        return await self._get(target, tuple[Revision, ...], {"status": status})


def _at(project_id: str, *parts: str) -> str:
    return query.path("projects", project_id, "application", *parts)
