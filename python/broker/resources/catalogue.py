"""All operations of the product, collected from their modules."""

from broker.operations.registry import Registry
from broker.resources import (
    analytics_reports,
    analytics_sites,
    api_tokens,
    application_requests,
    audit,
    connect,
    events,
    images,
    imports,
    programs,
    projects,
    revision_routes,
    statistics,
    status,
    storage,
    tokens,
    users,
)
from broker.voting.resources import responses, results, visitors

_MODULES = (
    tokens,
    programs,
    events,
    imports,
    projects,
    revision_routes,
    storage,
    responses,
    results,
    visitors,
    application_requests,
    analytics_sites,
    analytics_reports,
    users,
    api_tokens,
    status,
    statistics,
    images,
    audit,
    connect,
)


def build_registry() -> Registry:
    """The registry that both doors serve."""
    return Registry(operation for module in _MODULES for operation in module.OPERATIONS)
