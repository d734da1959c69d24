"""User names, e-mail addresses, and who may change what of a user, as tables."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from broker.domain import permissions
from broker.domain.permission_table import USER_CHANGE, USER_READ
from broker.domain.users import Email, Principal, Role, User, Username
from broker.errors import InsufficientScope, Unauthenticated

EMAIL: TypeAdapter[str] = TypeAdapter(Email)
USERNAME: TypeAdapter[str] = TypeAdapter(Username)


def user(role: str = "producer", **changes: object) -> User:
    time = "2026-07-19T18:00:00Z"
    fields = {"id": "u1", "username": "kim", "role": role, "createdTime": time, "updatedTime": time}
    return User.model_validate({**fields, **changes})


def principal(role: str | None, subject: str = "u2") -> Principal:
    return Principal("demo", Role(role) if role else None, subject if role else None)


@pytest.mark.parametrize(
    "text", ["kim@example.com", "k@x", "kim+tv@sub.example.co.uk", "o'neil@xn--e1afmkfd.example"]
)
def test_address_of_common_form_is_taken(text: str) -> None:
    assert EMAIL.validate_python(text) == text


@pytest.mark.parametrize(
    "text", ["", "kim", "@", "k@", "@x", "k@-x", "k@x-", "k@x..y", "k@x.", "k m@x", "k@x y", "k@x\n", "k@@x"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        EMAIL.validate_python(text)


@given(st.text(max_size=300))
def test_every_user_name_that_is_taken_is_printable_and_stays_the_same(text: str) -> None:
    try:
        name = USERNAME.validate_python(text)
    except ValidationError:
        return
    assert name.isprintable()
    assert name == name.strip()
    assert USERNAME.validate_python(name) == name


@pytest.mark.parametrize("role", ["admin", "producer", "user", "client"])
def test_own_role_is_nobodys_to_change(role: str) -> None:
    other = "user" if role != "user" else "client"
    with pytest.raises(InsufficientScope):
        permissions.require_user_change(USER_CHANGE, principal(role, "u1"), user(role), user(other))


@pytest.mark.parametrize(
    ("role", "subject", "allowed"),
    [
        ("admin", "u2", True),
        ("admin", "u1", True),
        ("producer", "u1", True),
        ("producer", "u2", False),
        ("user", "u1", True),
        ("user", "u2", False),
        ("client", "u1", False),
        ("client", "u2", False),
    ],
)
def test_who_changes_a_name(role: str, subject: str, allowed: bool) -> None:
    before, after = user(role), user(role, name="Kim Vo")
    if allowed:
        permissions.require_user_change(USER_CHANGE, principal(role, subject), before, after)
        return
    with pytest.raises(InsufficientScope):
        permissions.require_user_change(USER_CHANGE, principal(role, subject), before, after)


@pytest.mark.parametrize("change", [{"username": "lee"}, {"projectIds": ["a"]}])
@pytest.mark.parametrize(("role", "allowed"), [("admin", True), ("producer", False), ("user", False)])
def test_who_changes_user_names_and_projects(role: str, change: dict[str, object], allowed: bool) -> None:
    caller = principal(role, "u1")
    if allowed:
        permissions.require_user_change(USER_CHANGE, caller, user(role), user(role, **change))
        return
    with pytest.raises(InsufficientScope):
        permissions.require_user_change(USER_CHANGE, caller, user(role), user(role, **change))


def test_profile_needs_a_token() -> None:
    with pytest.raises(Unauthenticated):
        permissions.require_user(USER_READ, principal(None), "u1")


def test_order_of_projects_is_no_change() -> None:
    before, after = user(projectIds=["a", "b"]), user(projectIds=["b", "a"])
    permissions.require_user_change(USER_CHANGE, principal("producer", "u1"), before, after)


@pytest.mark.parametrize(
    ("before", "after", "falls"),
    [
        ("admin", "producer", True),
        ("producer", "user", True),
        ("user", "client", True),
        ("client", "user", False),
        ("user", "producer", False),
        ("producer", "admin", False),
        ("user", "user", False),
    ],
)
def test_which_role_stands_below_which(before: str, after: str, falls: bool) -> None:
    assert permissions.is_demotion(Role(before), Role(after)) is falls
