"""All operations of the product, gathered from their modules."""

from broker.operations import api_tokens, connect, events, imports, programs, status, tokens, users
from broker.operations.registry import Registry


def build_registry() -> Registry:
    """The registry that both doors serve."""
    return Registry(
        operation
        for module in (tokens, programs, events, imports, users, api_tokens, status, connect)
        for operation in module.OPERATIONS
    )
