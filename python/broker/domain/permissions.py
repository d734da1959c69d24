"""Who may do what: the one place of each rule.

Operations name the rule they need; neither door, nor storage, nor the native server decides anything.
A rule that fails raises: without a token `Unauthenticated`, with one `InsufficientScope`, and where the
resource must not even be known `NotFound`.
"""

from broker.domain.programs import Access, Program
from broker.domain.users import Principal, Role
from broker.errors import InsufficientScope, Unauthenticated

PUBLISHERS = frozenset({Role.ADMIN, Role.PRODUCER})
READERS = frozenset({Role.ADMIN, Role.PRODUCER, Role.USER})
EVERYBODY = frozenset(Role)

_RANK = {Role.CLIENT: 0, Role.USER: 1, Role.PRODUCER: 2, Role.ADMIN: 3}


def require_role(principal: Principal, roles: frozenset[Role]) -> None:
    """Raise unless the caller has a token of one of `roles`."""
    if principal.role is None:
        raise Unauthenticated("an access token is required")
    if principal.role not in roles:
        raise InsufficientScope(f"the role {principal.role} may not do this")


def is_member(principal: Principal, project_id: str | None) -> bool:
    """Whether the caller's projects include `project_id`; no project counts as everybody's."""
    return principal.role is Role.ADMIN or project_id is None or project_id in principal.project_ids


def may_read_program(principal: Principal, program: Program) -> bool:
    """Public programs are everybody's; private ones are for the account's admins and the project's readers."""
    if program.access is Access.PUBLIC:
        return True
    return principal.role in READERS and is_member(principal, program.project_id)


def require_read(principal: Principal, program: Program) -> None:
    """Raise unless the caller may read the program and its events."""
    if may_read_program(principal, program):
        return
    if principal.is_anonymous:
        raise Unauthenticated("an access token is required")
    raise InsufficientScope("this program is private")


def may_publish(principal: Principal, project_id: str | None) -> bool:
    """Whether the caller may publish to and change programs of this project."""
    return principal.role in PUBLISHERS and is_member(principal, project_id)


def require_publish(principal: Principal, project_id: str | None) -> None:
    """Raise unless the caller may publish to and change programs of this project."""
    require_role(principal, PUBLISHERS)
    if not may_publish(principal, project_id):
        raise InsufficientScope("the program belongs to a project of others")


def require_grantable(principal: Principal, role: Role) -> None:
    """Raise when `role` stands above the caller's own."""
    if principal.role is None or _RANK[role] > _RANK[principal.role]:
        raise InsufficientScope(f"the role {role} stands above your own")
