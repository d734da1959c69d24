"""Who may do what: the one place of each rule.

Operations name the rule they need; neither door, nor storage, nor the native server decides anything.
A rule that fails raises: without a token `Unauthenticated`, with one `InsufficientScope`, and where the
resource must not even be known `NotFound`.
"""

from broker.domain.programs import Access, Program
from broker.domain.users import Principal, Role, User
from broker.errors import InsufficientScope, NotFound, Unauthenticated

ADMINS = frozenset({Role.ADMIN})
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


def require_profile(principal: Principal, user_id: str) -> None:
    """Raise unless the caller is an admin or the user itself; whether there is such a user is not told."""
    require_role(principal, EVERYBODY)
    if principal.role is not Role.ADMIN and principal.subject != user_id:
        raise InsufficientScope("only an admin sees and changes other users")


def require_user_change(principal: Principal, before: User, after: User) -> None:
    """Raise unless the caller may make the user `before` into `after`.

    Users change their own name, e-mail and password; the rest is an admin's, and nobody's own role is its own
    to change. `client` tokens are in the hands of the public, so their user is left to the admins.
    """
    require_profile(principal, before.id)
    require_role(principal, READERS)
    if after.role is not before.role:
        if principal.subject == before.id:
            raise InsufficientScope("nobody can change its own role")
        require_grantable(principal, after.role)
    if principal.role is Role.ADMIN:
        return
    if after.username != before.username or set(after.project_ids) != set(before.project_ids):
        raise InsufficientScope("only an admin changes user names and projects")


def is_demotion(before: Role, after: Role) -> bool:
    """Whether `after` stands below `before`."""
    return _RANK[after] < _RANK[before]


def is_member(principal: Principal, project_id: str | None) -> bool:
    """Whether the caller's projects include `project_id`; no project counts as everybody's."""
    return principal.role is Role.ADMIN or project_id is None or project_id in principal.project_ids


def require_project_read(principal: Principal, project_id: str) -> None:
    """Raise unless the caller may read the project; those who read their own do not see that of others."""
    require_role(principal, READERS)
    if not is_member(principal, project_id):
        raise NotFound(f"there is no project {project_id}")


def require_project_work(principal: Principal, project_id: str) -> None:
    """Raise unless the caller may change what is in the project; only an admin changes the project itself."""
    require_role(principal, PUBLISHERS)
    require_project_read(principal, project_id)


def may_replace_value(principal: Principal) -> bool:
    """Whether the caller may store a value in place of another; without a token values can only be added."""
    return not principal.is_anonymous


def may_read_program(principal: Principal, program: Program) -> bool:
    """Public programs are everybody's; private ones are for the admins and the project's readers."""
    if program.access is Access.PUBLIC:
        return True
    return principal.role in READERS and is_member(principal, program.project_id)


def require_read(principal: Principal, program: Program) -> None:
    """Raise unless the caller may read the program and its events.

    A private program of a project of others does not exist for those who read private programs of their own.
    """
    if may_read_program(principal, program):
        return
    if principal.is_anonymous:
        raise Unauthenticated("an access token is required")
    if principal.role in READERS:
        raise NotFound(f"there is no program {program.id}")
    raise InsufficientScope("this program is private")


def may_publish(principal: Principal, project_id: str | None) -> bool:
    """Whether the caller may publish to and change programs of this project."""
    return principal.role in PUBLISHERS and is_member(principal, project_id)


def require_publish(principal: Principal, project_id: str | None) -> None:
    """Raise unless the caller may publish to and change programs of this project."""
    require_role(principal, PUBLISHERS)
    if not may_publish(principal, project_id):
        raise InsufficientScope("the program belongs to a project of others")


def require_change(principal: Principal, program: Program) -> None:
    """Raise unless the caller may publish to and change this program; see `require_read` too."""
    require_role(principal, PUBLISHERS)
    require_read(principal, program)
    require_publish(principal, program.project_id)


def require_grantable(principal: Principal, role: Role) -> None:
    """Raise when `role` stands above the caller's own."""
    if principal.role is None or _RANK[role] > _RANK[principal.role]:
        raise InsufficientScope(f"the role {role} stands above your own")
