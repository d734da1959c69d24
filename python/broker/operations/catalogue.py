"""All operations of the product, gathered from their modules."""

from broker.operations import (
    api_tokens,
    application_requests,
    connect,
    events,
    imports,
    programs,
    projects,
    revision_routes,
    status,
    storage,
    tokens,
    users,
)
from broker.operations.registry import Registry


def build_registry() -> Registry:
    """The registry that both doors serve."""
    return Registry(
        operation
        for module in (
            tokens,
            programs,
            events,
            imports,
            projects,
            revision_routes,
            storage,
            application_requests,
            users,
            api_tokens,
            status,
            connect,
        )
        for operation in module.OPERATIONS
    )
