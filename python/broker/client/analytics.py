"""The calls on projects' analytics sites, reached as `client.analytics`."""

from collections.abc import Mapping
from typing import Any

from broker.client import query
from broker.client.engine import Call, Group
from broker.client.models import AnalyticsSite
from broker.client.retry import Safety

_SET_UP_S = 115.0  # a set-up is some dozen requests to Matomo; the broker gives up after 120 s


class Analytics(Group):
    """Analytics of projects."""

    async def get_site(self, project_id: str) -> AnalyticsSite:
        """What the project's site is like. Raises NotFound when Matomo does not have it."""
        return await self._get(_site(project_id), AnalyticsSite)

    async def create_site(self, project_id: str, *, idempotency_key: str | None = None) -> AnalyticsSite:
        """Create the project's site with all that belongs to it; takes what a broken-off call has made.

        Raises:
            ServerError: `Already exists`, or Matomo failed.
            Conflict: another set-up of the project is under way.
        """
        return await self._set_up("POST", project_id, idempotency_key)

    async def complete_site(self, project_id: str, *, idempotency_key: str | None = None) -> AnalyticsSite:
        """Add what the project's site lacks.

        Raises:
            NotFound: Matomo does not have the site.
            ServerError: `Bad config`, which `get_site` explains, or Matomo failed.
            Conflict: another set-up of the project is under way.
        """
        return await self._set_up("PUT", project_id, idempotency_key)

    async def get_report(self, /, project_id: str, method: str, **parameters: Any) -> Any:
        """A report of the project's site: the JSON that Matomo answers.

        Args:
            method: one of Matomo's reporting methods, such as `VisitsSummary.get`.
            parameters: its own, such as `period="day"`, `date="today"`; the site is the project's.

        Raises:
            InsufficientScope: the method is no report that can be read.
            NotFound: the project has no site.
        """
        body: Mapping[str, Any] = {"method": method, **parameters}
        target = query.path("projects", project_id, "analytics")
        return await self._engine.send(Call("POST", target, object, body=body, own_safety=Safety.REPEATABLE))

    async def get_snippet(self, project_id: str) -> str:
        """The script by which overlays measure. Raises NotFound without a site."""
        target = query.path("projects", project_id, "analytics", "snippet")
        call = Call("GET", target, bytes, headers={"Accept": "text/javascript"})
        async with self._engine.stream(call) as reply:
            return (await reply.aread()).decode()

    async def _set_up(self, method: str, project_id: str, idempotency_key: str | None) -> AnalyticsSite:
        call = Call(method, _site(project_id), AnalyticsSite, key=idempotency_key, timeout_s=_SET_UP_S)
        return await self._engine.send(call)


def _site(project_id: str) -> str:
    return query.path("projects", project_id, "analytics", "site")
