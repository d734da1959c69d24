"""All operations of the product, gathered from their modules."""

from broker.operations import programs, status
from broker.operations.registry import Registry


def build_registry() -> Registry:
    """The registry that both doors serve."""
    return Registry((*status.OPERATIONS, *programs.OPERATIONS))
