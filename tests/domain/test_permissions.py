"""`broker.domain.permissions`, as tables."""

import pytest

from broker.domain import permissions
from broker.domain.programs import Program
from broker.domain.users import Principal, Role
from broker.errors import BrokerError, InsufficientScope, NotFound, Unauthenticated


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


@pytest.mark.parametrize("role", [None, "client", "user", "producer", "admin"])
@pytest.mark.parametrize("project", [None, "own", "other"])
def test_everybody_reads_a_public_program(role: str | None, project: str | None) -> None:
    permissions.require_read(principal(role, "own"), program("public", project))


@pytest.mark.parametrize(
    ("role", "project", "refusal"),
    [
        ("admin", "other", None),
        ("producer", "own", None),
        ("producer", None, None),
        ("producer", "other", NotFound),
        ("user", "own", None),
        ("user", "other", NotFound),
        ("client", "own", InsufficientScope),
        ("client", None, InsufficientScope),
    ],
)
def test_who_reads_a_private_program(
    role: str, project: str | None, refusal: type[BrokerError] | None
) -> None:
    caller = principal(role, "own")
    if refusal is None:
        permissions.require_read(caller, program("private", project))
    else:
        with pytest.raises(refusal):
            permissions.require_read(caller, program("private", project))


@pytest.mark.parametrize(
    ("role", "access", "project", "refusal"),
    [
        ("admin", "private", "other", None),
        ("producer", "private", "own", None),
        ("producer", "public", None, None),
        ("producer", "public", "other", InsufficientScope),
        ("producer", "private", "other", NotFound),
        ("user", "public", "own", InsufficientScope),
        ("client", "public", None, InsufficientScope),
        (None, "public", None, Unauthenticated),
    ],
)
def test_who_changes_a_program(
    role: str | None, access: str, project: str | None, refusal: type[BrokerError] | None
) -> None:
    caller = principal(role, "own")
    if refusal is None:
        permissions.require_change(caller, program(access, project))
    else:
        with pytest.raises(refusal):
            permissions.require_change(caller, program(access, project))


def test_without_a_token_a_private_program_needs_one() -> None:
    with pytest.raises(Unauthenticated):
        permissions.require_read(principal(None), program("private", None))


@pytest.mark.parametrize(
    ("role", "project", "allowed"),
    [
        ("admin", "other", True),
        ("producer", "own", True),
        ("producer", None, True),
        ("producer", "other", False),
        ("user", "own", False),
        ("client", None, False),
    ],
)
def test_who_publishes(role: str, project: str | None, allowed: bool) -> None:
    assert permissions.may_publish(principal(role, "own"), project) is allowed


@pytest.mark.parametrize("role", list(Role))
def test_nobody_grants_a_role_above_its_own(role: Role) -> None:
    order = [Role.CLIENT, Role.USER, Role.PRODUCER, Role.ADMIN]
    for wanted in order:
        if order.index(wanted) <= order.index(role):
            permissions.require_grantable(principal(role), wanted)
        else:
            with pytest.raises(InsufficientScope):
                permissions.require_grantable(principal(role), wanted)
