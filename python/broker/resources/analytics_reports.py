"""Reports of a project's analytics site, and the analytics script for overlays.

A report is asked of Matomo as the read-only user, for the project's own site, and with nothing but what
`broker.analytics.reports` names. Any HTTP method asks the same: the parameters are those of the query or of
the body.
"""

from collections.abc import AsyncIterator
from typing import Any

from pydantic import RootModel

from broker.analytics.errors import BadConfig
from broker.analytics.matomo import Request
from broker.analytics.reports import METHODS, ReportParams
from broker.analytics.snippet import build_snippet
from broker.clock import to_datetime
from broker.domain import permissions
from broker.domain.values import Id, Model
from broker.errors import BadGateway, GatewayTimeout, InsufficientScope
from broker.operations.context import Context
from broker.operations.registry import Effect, Operation, Route
from broker.operations.results import Json, Stream

SCRIPT_TYPE = "text/javascript"


class Table(RootModel[dict[str, Any] | list[Any] | str | float | None]):
    """A report as Matomo answers it: mostly a list of rows, or an object of figures."""


class Script(RootModel[str]):
    """JavaScript."""


class SnippetParams(Model):
    """Names a project."""

    project_id: Id


async def _report(context: Context, params: ReportParams) -> Json | Stream:
    permissions.require_project(context.rule, context.principal, params.project_id)
    if not params.is_report():
        raise InsufficientScope(f"{params.method} is not a report that can be read here")
    services, account = context.services, context.principal.account
    platforms = services.analytics
    opened = await platforms.open(account, params.project_id)
    id_site = await platforms.require_own_site(account, opened)
    return await platforms.replies.get(
        (account, params.project_id),
        opened.access.url,
        platforms.reporting(opened.access),
        Request(params.method, params.parameters(id_site)),
        params.kept_s(to_datetime(services.clock.now_ms())),
    )


async def _snippet(context: Context, params: SnippetParams) -> Stream:
    permissions.require_project(context.rule, context.principal, params.project_id)
    platforms, account = context.services.analytics, context.principal.account
    opened = await platforms.open(account, params.project_id)
    await platforms.require_own_site(account, opened)
    script = build_snippet(opened.access.url, opened.ids)

    async def whole() -> AsyncIterator[bytes]:
        yield script.encode()

    return Stream(whole(), f"{SCRIPT_TYPE}; charset=utf-8", {"Cache-Control": "private, no-cache"})


def _operation(method: str) -> Operation:
    return Operation(
        name=f"{method.lower()}AnalyticsReport",
        summary="Read a report of a project's analytics site",
        result=Table,
        handler=_report,
        route=Route(
            method,
            "/projects/{projectId}/analytics",
            description="`method` is one of "
            + ", ".join(f"`{name}`" for name in sorted(METHODS))
            + "; others are 403. Site, user and format are the broker's. The reply is Matomo's JSON, at most"
            " {report_limit_bytes} bytes; one that exceeds them or breaks off half-way ends without its last"
            " chunk. It may be a minute old, and an hour where its days are over."
            " Without a body, parameters may be in the query whatever the HTTP method.",
            takes_query=True,
            ends_with_client=True,
        ),
        own_effect=Effect.NONE,
        errors=(BadConfig, BadGateway, GatewayTimeout),
        example={
            "projectId": "football",
            "method": "VisitsSummary.get",
            "period": "day",
            "date": "2026-07-19",
        },
        tag="Analytics",
    )


OPERATIONS = (
    *(_operation(method) for method in ("GET", "POST", "PUT", "PATCH", "DELETE")),
    Operation(
        name="getAnalyticsSnippet",
        summary="Get the analytics script for overlays of a project",
        result=Script,
        handler=_snippet,
        route=Route(
            "GET",
            "/projects/{projectId}/analytics/snippet",
            description="A script for a web page. It loads Matomo's tracker, sends to the project's site, and"
            " accepts custom dimensions by name.",
            produces=(SCRIPT_TYPE,),
        ),
        errors=(BadConfig, BadGateway, GatewayTimeout),
        example={"projectId": "football"},
        tag="Analytics",
    ),
)
