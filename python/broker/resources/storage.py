"""Project storage: values that the clients of a project share while a show is on.

Reading is open to everybody who knows an id. Anybody may add a value; only a caller with a token may store
one in place of another. What is stored without a token never takes more than half of a project's room.
"""

from pydantic import Field

from broker.domain import permissions
from broker.domain.callers import caller_of
from broker.domain.quotas import QuotaName
from broker.domain.stored_values import StoredValue, stored_value_json
from broker.domain.values import FreeObject, Id, Model, format_ms, limited_by
from broker.errors import Conflict, NotFound, PayloadTooLarge
from broker.metrics.counts import QUOTA_REFUSALS
from broker.operations.context import Context
from broker.operations.etags import etag_of
from broker.operations.metadata import compact
from broker.operations.registry import Operation, Route, of_resource
from broker.operations.results import Json
from broker.storage.projects import unknown_project
from broker.storage.stored_values import NewValue, Quota, StoreOutcome

_CACHED = "public, max-age=86400"
_NOBODY = "nobody"  # a caller without an address, which is no peer


class StoredValueParams(Model):
    """Names a stored value."""

    project_id: Id
    item_id: Id


class StoreValueParams(Model):
    """A value to store."""

    project_id: Id
    id: Id | None = Field(default=None, description="Generated when absent.")
    metadata: FreeObject = Field(
        description="Any JSON object.", json_schema_extra=limited_by("storage_value_limit_bytes")
    )


async def _get_stored_value(context: Context, params: StoredValueParams) -> Json:
    account = context.principal.account
    value = await context.services.stored_values.find(account, params.project_id, params.item_id)
    if value is None:
        raise NotFound(f"the project {params.project_id} has no value {params.item_id}")
    return Json(value, {"ETag": etag_of(value), "Cache-Control": _CACHED})


async def _store_value(context: Context, params: StoreValueParams) -> Json:
    services, principal = context.services, context.principal
    settings = services.settings
    if principal.is_anonymous:
        await services.storage_rate.take(principal.account, context.address)
    value = NewValue(
        project_id=params.project_id,
        id=params.id or services.ids.uuid7(),
        metadata=compact(params.metadata, "metadata", settings.storage_value_limit_bytes),
        time_ms=services.clock.now_ms(),
    )
    result = stored_value_json(value.id, value.metadata, format_ms(value.time_ms))
    outcome = await services.stored_values.store(
        principal.account,
        value,
        Quota(settings.storage_project_values, settings.storage_project_bytes),
        anonymous_caller=(caller_of(context.address) or _NOBODY) if principal.is_anonymous else None,
        alone=context.key is not None,
    )
    if not outcome.is_stored:
        _refuse(outcome, value, settings.storage_project_values, settings.storage_project_bytes)
    context.after(lambda: services.owners.value_stored(principal.account, value.project_id))
    return _stored(result, value.project_id, value.id, outcome)


def _refuse(outcome: StoreOutcome, value: NewValue, values: int, total_bytes: int) -> None:
    match outcome:
        case StoreOutcome.UNKNOWN:
            raise unknown_project(value.project_id)
        case StoreOutcome.TAKEN:
            raise Conflict(f"the value {value.id} already exists; an access token is required to replace it")
        case StoreOutcome.MANY:
            raise PayloadTooLarge(f"the project has reached its limit of {values} values")
        case StoreOutcome.LARGE:
            raise PayloadTooLarge(f"the project may not store more than {total_bytes} bytes")
        case StoreOutcome.SHARED:
            raise PayloadTooLarge("callers without a token have reached their limit in this project")
        case StoreOutcome.OWN:
            raise PayloadTooLarge("you have reached the limit of this project for callers without a token")
        case StoreOutcome.QUOTA:
            QUOTA_REFUSALS.add(QuotaName.STORAGE.value)
            raise PayloadTooLarge("the account has reached its quota of bytes in storage")


def _stored(body: bytes, project_id: str, value_id: str, outcome: StoreOutcome) -> Json:
    headers = {"ETag": etag_of(body)}
    if outcome is StoreOutcome.REPLACED:
        return Json(body, headers, status=200)
    return Json(body, headers | {"Location": f"/api/v1/storage/{project_id}/{value_id}"}, status=201)


async def _delete_stored_value(context: Context, params: StoredValueParams) -> None:
    permissions.require_project(context.rule, context.principal, params.project_id)
    stored_values = context.services.stored_values
    await stored_values.delete(context.principal.account, params.project_id, params.item_id)


OPERATIONS = of_resource(
    "Storage",
    Operation(
        name="getStoredValue",
        summary="Get a stored value",
        result=StoredValue,
        handler=_get_stored_value,
        route=Route(
            "GET",
            "/storage/{projectId}/{itemId}",
            description="May be cached for 24 hours.",
        ),
        example={"projectId": "football", "itemId": "line-up"},
        has_etag=True,
    ),
    Operation(
        name="storeValue",
        summary="Store a value for a project",
        result=StoredValue,
        handler=_store_value,
        route=Route(
            "POST",
            "/storage/{projectId}",
            status=201,
            description="With a token, storing under an existing id replaces the value and returns 200;"
            " without one it is 409. Subscribers of the channel `storage:<projectId>` receive the value as"
            " `stored`. A project holds at most {storage_project_values} values of"
            " {storage_project_bytes} bytes together. Callers without a token share half of both, and"
            " one address may use a tenth of that half (413 beyond). Without a token, the rate limits"
            " are {storage_rate_per_address} values per second per address (burst"
            " {storage_burst_per_address}) and {storage_rate_per_account} per account (burst"
            " {storage_burst_per_account}); 0 is no limit.",
            location="/storage/{projectId}/{id}",
            locates_itself=True,
            also={200: "The value took the place of an earlier one."},
        ),
        example={"projectId": "football", "id": "line-up", "metadata": {"home": ["Kim", "Vo"]}},
        has_etag=True,
    ),
    Operation(
        name="deleteStoredValue",
        summary="Delete a stored value",
        handler=_delete_stored_value,
        route=Route(
            "DELETE",
            "/storage/{projectId}/{itemId}",
            status=204,
            description="Caches may serve the value for up to a day.",
        ),
        example={"projectId": "football", "itemId": "line-up"},
    ),
)
