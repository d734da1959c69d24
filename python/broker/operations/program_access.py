"""Finds the program of an operation, for a caller who may run the operation on it."""

from broker.domain import permissions
from broker.domain.programs import Program
from broker.domain.users import Role
from broker.errors import InvalidRequest
from broker.operations.context import Context

# The interface document's spelling, and the one that was meant: programs without a project.
WITHOUT_PROJECT = frozenset({"undefiend", "undefined"})


def check_project_ids(field: str, *named: str | None) -> None:
    """Raise InvalidRequest for a word that stands for no project: what is in it, no filter would find."""
    if not WITHOUT_PROJECT.isdisjoint(named):
        raise InvalidRequest.of_field(field, "is a reserved word")


async def allowed_program(context: Context, program_id: str) -> Program:
    """The program, for a caller whom the operation's rule lets do it.

    Raises:
        Unauthenticated, InsufficientScope, NotFound: as the rule says; without a token a private and an
            unknown program are alike.
    """
    program = await context.services.programs.find(context.principal.account, program_id)
    return _allowed(context, program, program_id)


async def check_publisher(context: Context, program_id: str) -> None:
    """Raise as `allowed_program` does; for the hot path, without a query for most publishes.

    An admin may publish to whatever exists, which the owner checks. For producers the program's project is
    as of at most a second ago.
    """
    if context.principal.role is Role.ADMIN:
        return
    program = await context.services.programs.recall(context.principal.account, program_id)
    _allowed(context, program, program_id)


def is_project(named: str | None, project_id: str | None) -> bool:
    """Whether a request that names a project, or None, means the program of `project_id`."""
    if named is None or named == project_id:
        return True
    return project_id is None and named in WITHOUT_PROJECT


def _allowed(context: Context, program: Program | None, program_id: str) -> Program:
    permissions.require_program(context.rule, context.principal, program, program_id)
    assert program is not None, "no rule allows anything on what is not there"
    return program
