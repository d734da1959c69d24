"""Finding the program that an operation is about, for a caller who may do the operation on it."""

from broker.domain import permissions
from broker.domain.programs import Program
from broker.domain.users import Role
from broker.errors import NotFound, Unauthenticated
from broker.operations.context import Context


async def readable_program(context: Context, program_id: str) -> Program:
    """The program, for a caller who may read it.

    Raises:
        Unauthenticated: without a token, for a private and an unknown program alike.
        InsufficientScope, NotFound: see `permissions.require_read`.
    """
    program = await context.services.programs.find(context.principal.account, program_id)
    if program is None:
        raise _unknown(context, program_id)
    permissions.require_read(context.principal, program)
    return program


async def changeable_program(context: Context, program_id: str) -> Program:
    """The program, for a caller who may publish to it and change it.

    Raises:
        Unauthenticated, InsufficientScope, NotFound: see `permissions.require_change`.
    """
    program = await context.services.programs.find(context.principal.account, program_id)
    if program is None:
        raise _unknown(context, program_id)
    permissions.require_change(context.principal, program)
    return program


async def check_publisher(context: Context, program_id: str) -> None:
    """Raise as `changeable_program` does; for the hot path, without a query for most publishes.

    An admin may publish to whatever exists, which the owner checks. For producers the program's project is
    as of at most a second ago.
    """
    if context.principal.role is Role.ADMIN:
        return
    services = context.services
    program = await services.programs.recall(context.principal.account, program_id)
    if program is None:
        raise _unknown(context, program_id)
    permissions.require_change(context.principal, program)


def _unknown(context: Context, program_id: str) -> Unauthenticated | NotFound:
    if context.principal.is_anonymous:
        return Unauthenticated("an access token is required")
    return NotFound(f"there is no program {program_id}")
