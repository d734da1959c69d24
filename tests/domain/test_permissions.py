"""`broker.domain.permissions`: how callers stand to things. What they get is tests/test_permissions.py."""

import pytest

from broker.domain import permissions
from broker.domain.permission_table import CLOSED, PERMISSIONS, ROLES, Rule, Target, Verdict
from broker.domain.programs import Program
from broker.domain.users import Principal, Role
from broker.errors import InsufficientScope, NotFound, Unauthenticated

YES, E401, E403, E404 = Verdict.YES, Verdict.E401, Verdict.E403, Verdict.E404
RULE = Rule({Target.OWN: (YES, YES, E403, E403, E401), Target.FOREIGN: (YES, E404, E403, E403, E401)})


def principal(role: str | None, *projects: str) -> Principal:
    return Principal("demo", role and Role(role), role and "u1", role, frozenset(projects))


def program(access: str, project: str | None) -> Program:
    time = "2026-07-19T18:00:00Z"
    return Program.model_validate(
        {
            "id": "p",
            "name": "P",
            "access": access,
            "projectId": project,
            "createdTime": time,
            "updatedTime": time,
        }
    )


@pytest.mark.parametrize(
    ("access", "project", "target"),
    [
        ("public", "own", Target.PUBLIC_OWN),
        ("public", None, Target.PUBLIC_FREE),
        ("public", "other", Target.PUBLIC_FOREIGN),
        ("private", "own", Target.PRIVATE_OWN),
        ("private", None, Target.PRIVATE_FREE),
        ("private", "other", Target.PRIVATE_FOREIGN),
    ],
)
def test_how_a_caller_stands_to_a_program(access: str, project: str | None, target: Target) -> None:
    for role in ("admin", "producer", "user", "client"):
        assert permissions.program_target(principal(role, "own"), program(access, project)) is target


@pytest.mark.parametrize(
    ("role", "project", "refusal"),
    [
        ("producer", "other", NotFound),
        ("user", "own", InsufficientScope),
        (None, "own", Unauthenticated),
    ],
)
def test_refusals_are_the_rules(role: str | None, project: str, refusal: type[Exception]) -> None:
    with pytest.raises(refusal):
        permissions.require_project(RULE, principal(role, "own"), project)
    permissions.require_project(RULE, principal("producer", "own"), "own")


def test_the_audience_is_who_is_not_always_refused() -> None:
    assert RULE.audience == {Role.ADMIN, Role.PRODUCER}
    permissions.require_audience(RULE, principal("producer"))
    with pytest.raises(InsufficientScope):
        permissions.require_audience(RULE, principal("user", "own"))
    with pytest.raises(Unauthenticated):
        permissions.require_audience(RULE, principal(None))
    opened = RULE | Rule({Target.OWN: (YES,) * 5})
    assert opened.audience is None
    permissions.require_audience(opened, principal(None))


@pytest.mark.parametrize("role", ["admin", None])
def test_without_a_rule_nothing_is_allowed(role: str | None) -> None:
    with pytest.raises((InsufficientScope, Unauthenticated)):
        permissions.require_audience(CLOSED, principal(role))
    with pytest.raises(KeyError):
        permissions.require_project(CLOSED, principal(role), "own")


def test_lists_show_all_only_to_whom_the_foreign_is_shown() -> None:
    assert permissions.shown_projects(PERMISSIONS["listProjects"], principal("admin")) is None
    assert permissions.shown_projects(PERMISSIONS["listProjects"], principal("user", "own")) == {"own"}


def test_nothing_is_done_with_what_is_not_there() -> None:
    """Handlers rely on it: a thing that was not found is refused by the rule."""
    for name, rule in PERMISSIONS.items():
        if Target.UNKNOWN in rule.rows:
            assert not any(rule.allows(role, Target.UNKNOWN) for role in ROLES), name


@pytest.mark.parametrize("role", list(Role))
def test_nobody_grants_a_role_above_its_own(role: Role) -> None:
    order = [Role.CLIENT, Role.USER, Role.PRODUCER, Role.ADMIN]
    for wanted in order:
        if order.index(wanted) <= order.index(role):
            permissions.require_grantable(principal(role), wanted)
        else:
            with pytest.raises(InsufficientScope):
                permissions.require_grantable(principal(role), wanted)
