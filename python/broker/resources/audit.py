"""The audit log, for admins."""

from typing import Annotated

from pydantic import Field

from broker.domain.values import FIRST_FAULT, FreeObject, Id, Model, Name, Time
from broker.errors import InvalidRequest
from broker.operations.context import Context
from broker.operations.listing import CommaList, ListParams
from broker.operations.registry import Operation, Route
from broker.storage.audit import AuditQuery, AuditRow

MAX_ACTIONS = 100  # more than there are; a URL of that length still passes servers and proxies
_Action = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z]+\.[A-Za-z]+$")]


class AuditParams(ListParams):
    """Which entries; the newest come first unless `order` is `asc`."""

    action: Annotated[list[_Action], FIRST_FAULT, CommaList, Field(max_length=MAX_ACTIONS)] | None = None
    target_id: Name | None = None
    user_id: Id | None = None
    from_: Annotated[Time | None, Field(alias="from")] = None
    to: Time | None = None


class AuditResource(Model):
    """One administrative change. `userId` is null for the operator and an identity provider."""

    id: int
    time: Time
    user_id: str | None
    username: str
    action: str
    target_type: str
    target_id: str
    details: FreeObject


class AuditPage(Model):
    """One page of the log; `total` counts the entries on the other pages too."""

    items: list[AuditResource]
    total: int
    limit: int
    skip: int


async def _filter_audit(context: Context, params: AuditParams) -> AuditPage:
    if params.from_ is not None and params.to is not None and params.to < params.from_:
        raise InvalidRequest.of_field("to", "must not be before from")
    query = AuditQuery(
        limit=params.limit,
        skip=params.skip,
        descending=params.order != "asc",
        search=params.search,
        actions=params.action,
        target_id=params.target_id,
        user_id=params.user_id,
        start=params.from_,
        end=params.to,
    )
    rows, total = await context.services.audit.filter(context.principal.account, query)
    items = [_resource(row) for row in rows]
    return AuditPage.model_construct(items=items, total=total, limit=params.limit, skip=params.skip)


def _resource(row: AuditRow) -> AuditResource:
    entry = row.entry
    return AuditResource.model_construct(
        id=row.id,
        time=row.time,
        user_id=entry.actor.user_id,
        username=entry.actor.name,
        action=entry.action,
        target_type=entry.target_type,
        target_id=entry.target_id,
        details=dict(entry.details),
    )


OPERATIONS = (
    Operation(
        name="filterAudit",
        summary="Search the log of administrative changes",
        handler=_filter_audit,
        is_list=True,
        route=Route(
            "GET",
            "/audit",
            description="Changes and deletions of accounts, identity providers, users, API tokens, projects,"
            " revisions and programs: who made them, and when. Entries contain no passwords and no"
            " tokens. `from` is inclusive, `to` exclusive. `search` matches actions, targets and user"
            " names. Entries are kept for {audit_days} days; 0 is for ever.",
        ),
        example={"action": "user.created,user.deleted", "limit": 20},
        tag="Audit",
    ),
)
