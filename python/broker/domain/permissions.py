"""Decisions by the permission table: the relation of a caller to a resource, and the resulting right.

Who may do what is data, in `broker.domain.permission_table`. An operation's handler hands over the rule of
its operation and the thing, once it knows it; a refusal raises `Unauthenticated`, `InsufficientScope` or
`NotFound`, as the table says. Neither door, nor storage, nor the native server decides anything.
"""

from broker.domain.permission_table import (
    PERMISSIONS,
    PROGRAM_CREATE,
    PROJECT_READ,
    Rule,
    Target,
    Verdict,
)
from broker.domain.programs import Access, Program
from broker.domain.users import RANKED_ROLES, Principal, Role, User
from broker.errors import InsufficientScope, NotFound, Unauthenticated

PUBLISHERS = frozenset(PROGRAM_CREATE.audience or ())
READERS = frozenset(PROJECT_READ.audience or ())

_RANK = {role: rank for rank, role in enumerate(reversed(RANKED_ROLES))}

# How (access, belonging) of a program makes its target.
_PROGRAM = {
    (Access.PUBLIC, Target.OWN): Target.PUBLIC_OWN,
    (Access.PUBLIC, Target.NO_PROJECT): Target.PUBLIC_FREE,
    (Access.PUBLIC, Target.FOREIGN): Target.PUBLIC_FOREIGN,
    (Access.PRIVATE, Target.OWN): Target.PRIVATE_OWN,
    (Access.PRIVATE, Target.NO_PROJECT): Target.PRIVATE_FREE,
    (Access.PRIVATE, Target.FOREIGN): Target.PRIVATE_FOREIGN,
}
_INTO = {
    Target.OWN: Target.INTO_OWN,
    Target.NO_PROJECT: Target.INTO_NONE,
    Target.FOREIGN: Target.INTO_FOREIGN,
}
_REVISION = {
    (True, Target.OWN): Target.PUBLISHED_OWN,
    (True, Target.FOREIGN): Target.PUBLISHED_FOREIGN,
    (False, Target.OWN): Target.DRAFT_OWN,
    (False, Target.FOREIGN): Target.DRAFT_FOREIGN,
}
# What 403 says where more than the role is at fault.
_REASONS = {
    Target.PUBLIC_FOREIGN: "the program belongs to a project that is not yours",
    Target.INTO_FOREIGN: "the program belongs to a project that is not yours",
    Target.PRIVATE_OWN: "this program is private",
    Target.PRIVATE_FREE: "this program is private",
    Target.PRIVATE_FOREIGN: "this program is private",
    Target.DRAFT_OWN: "this revision is not published",
    Target.DRAFT_FOREIGN: "this revision is not published",
    Target.OWN_RIGHTS: "only an admin can change user names and projects",
    Target.OWN_ROLE: "users cannot change their own role",
    Target.OTHER_USER: "only an admin can read and change other users",
    Target.UNKNOWN: "only an admin can read and change other users",
}


def require(
    rule: Rule,
    principal: Principal,
    target: Target,
    missing: str = "there is no such resource",
    hidden: str = "",
) -> None:
    """Raise unless the rule has the caller's thing done.

    Args:
        missing: what a 404 says; the same whether the thing is not there or not for the caller.
        hidden: what a 401 says besides; the same whether the thing is not there or not for everybody.
    """
    verdict = rule.verdict(principal.role, target)
    if verdict is Verdict.YES:
        return
    match verdict:
        case Verdict.E401:
            raise Unauthenticated(required_token(hidden))
        case Verdict.E403:
            raise InsufficientScope(_refusal(rule, principal, target))
        case Verdict.E404:
            raise NotFound(missing)


def require_audience(rule: Rule, principal: Principal) -> None:
    """Raise what the caller gets whatever the operation is about, before anything is looked up."""
    if rule.audience is None:
        return
    if principal.role is None:
        raise Unauthenticated(required_token())
    if principal.role not in rule.audience:
        raise InsufficientScope(_role_refusal(principal))


def required_token(hidden: str = "") -> str:
    """What a 401 says to a caller without a token."""
    return f"{hidden}; an access token is required" if hidden else "an access token is required"


def not_public(program_id: str) -> str:
    """What callers without a token learn of a program that is private or unknown; see `require`."""
    return f"there is no public program {program_id}"


def belonging(principal: Principal, project_id: str | None) -> Target:
    """How the caller stands to what is in this project: `OWN`, `FOREIGN`, or without one `NO_PROJECT`."""
    if project_id is None:
        return Target.NO_PROJECT
    return Target.OWN if project_id in principal.project_ids else Target.FOREIGN


def program_target(principal: Principal, program: Program) -> Target:
    """How the caller stands to the program."""
    return access_target(principal, program.access, program.project_id)


def access_target(principal: Principal, access: Access, project_id: str | None) -> Target:
    """How the caller stands to a program of this access and project."""
    return _PROGRAM[access, belonging(principal, project_id)]


def require_program(rule: Rule, principal: Principal, program: Program | None, program_id: str) -> None:
    """Raise unless the rule lets the caller do it to the program; None stands for one that is not there."""
    target = Target.UNKNOWN if program is None else program_target(principal, program)
    require(rule, principal, target, f"there is no program {program_id}", not_public(program_id))


def require_into(rule: Rule, principal: Principal, project_id: str | None) -> None:
    """Raise unless the rule lets the caller put a program into the project."""
    require(rule, principal, _INTO[belonging(principal, project_id)])


def require_project(rule: Rule, principal: Principal, project_id: str) -> None:
    """Raise unless the rule lets the caller do it in the project, if there is one."""
    require(rule, principal, belonging(principal, project_id), f"there is no project {project_id}")


def require_revision(
    rule: Rule, principal: Principal, project_id: str, *, is_published: bool, missing: str
) -> None:
    """Raise unless the rule lets the caller do it to a revision of the project."""
    require(rule, principal, _REVISION[is_published, belonging(principal, project_id)], missing)


def shown_projects(rule: Rule, principal: Principal) -> frozenset[str] | None:
    """The projects whose things a list shows, besides those without one; None is all."""
    return None if rule.allows(principal.role, Target.FOREIGN) else principal.project_ids


def require_user(rule: Rule, principal: Principal, user_id: str) -> None:
    """Raise unless the rule lets the caller do it to the user; whether there is one is not told."""
    target = Target.OWN_PROFILE if principal.subject == user_id else Target.OTHER_USER
    require(rule, principal, target)


def require_user_change(rule: Rule, principal: Principal, before: User, after: User) -> None:
    """Raise unless the rule lets the caller make the user `before` into `after`, and `require_grantable`."""
    require_user(rule, principal, before.id)
    is_own = principal.subject == before.id
    if after.role is not before.role:
        if is_own:
            require(rule, principal, Target.OWN_ROLE)
        require_grantable(principal, after.role)
    if is_own and (after.username != before.username or set(after.project_ids) != set(before.project_ids)):
        require(rule, principal, Target.OWN_RIGHTS)


def require_own_login(principal: Principal, what: str) -> None:
    """Raise for a caller whose token is an API token or came from one: whoever stole one must not outlive it.

    Args:
        what: what the caller may not do, for the error.
    """
    if principal.api_token_id is not None:
        raise InsufficientScope(f"an API token, or a token that came from one, {what}; log in")


def require_grantable(principal: Principal, role: Role) -> None:
    """Raise when `role` stands above the caller's own."""
    if principal.role is None or _RANK[role] > _RANK[principal.role]:
        raise InsufficientScope(f"the role {role} is above your own")


def is_demotion(before: Role, after: Role) -> bool:
    """Whether `after` stands below `before`."""
    return _RANK[after] < _RANK[before]


def rule_of(operation: str) -> Rule:
    """The rule of an operation. Raises ValueError for one that is not in the table."""
    rule = PERMISSIONS.get(operation)
    if rule is None:
        raise ValueError(f"the operation {operation} is not in the permission table")
    return rule


def _refusal(rule: Rule, principal: Principal, target: Target) -> str:
    may_something = rule.audience is None or principal.role in rule.audience
    reason = _REASONS.get(target) if may_something else None
    return reason or _role_refusal(principal)


def _role_refusal(principal: Principal) -> str:
    return f"the role {principal.role} may not do this"
