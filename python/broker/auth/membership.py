"""Creating, changing and deleting users, and the rules that hold among them.

Who may do it is not decided here: the operations pass a check and the caller, whose token must still hold
when its turn comes; the command line has none to pass. What holds for both: an account keeps an admin, a user
name is there once, and whoever loses its password or part of its rights loses its earlier tokens in the same
transaction. That transaction also writes the audit log, where it is said who did it.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from broker.clock import Clock, to_datetime
from broker.domain.audit import Actor, AuditEntry, changed_fields
from broker.domain.permissions import is_demotion
from broker.domain.users import Principal, Role, User
from broker.errors import Conflict
from broker.ids import IdSource
from broker.storage.users import UserEdit, Users

Change = Callable[[User], User]
"""Makes the user as it shall be from the user as it is. It may raise; then nothing has happened."""


def build_user(
    clock: Clock,
    ids: IdSource,
    *,
    username: str,
    role: Role,
    name: str | None = None,
    email: str | None = None,
    project_ids: list[str] | None = None,
) -> User:
    """A new user with an id and times of its own. The fields are valid already."""
    now = to_datetime(clock.now_ms())
    return User.model_construct(
        id=ids.uuid7(),
        username=username,
        role=role,
        name=name,
        email=email,
        project_ids=project_ids or [],
        created_time=now,
        updated_time=now,
    )


async def add_user(
    users: Users,
    account: str,
    user: User,
    password_hash: str,
    by: Actor | None = None,
    *,
    caller: Principal | None = None,
) -> User:
    """Store a new user.

    Raises:
        NotFound: no such account.
        Conflict: the user name is taken.
        Unauthenticated: the caller's token has been revoked meanwhile.
    """
    async with _editing(users, account, caller) as edit:
        added = await edit.insert(user, password_hash)
        if by is not None:
            details = {"username": added.username, "role": added.role, "projectIds": added.project_ids}
            await edit.record(AuditEntry(by, "user.created", added.id, details))
        return added


async def change_user(
    users: Users,
    clock: Clock,
    account: str,
    user_id: str,
    change: Change,
    password_hash: str | None = None,
    *,
    by: Actor | None = None,
    caller: Principal | None = None,
    claims_email: bool = False,
) -> User:
    """Change one user; a new password or a lower role makes its earlier tokens invalid.

    Args:
        claims_email: whether a new e-mail address is the user's own word; see `UserEdit.update`.

    Raises:
        NotFound: no such user.
        Conflict: the user name is taken, or the account would be left without an admin.
        Unauthenticated: the caller's token has been revoked meanwhile.
    """
    async with _editing(users, account, caller) as edit:
        before = await edit.get(user_id)
        after = change(before).model_copy(update={"updated_time": to_datetime(clock.now_ms())})
        demoted = is_demotion(before.role, after.role)
        if before.role is Role.ADMIN and demoted:
            await _require_another_admin(edit)
        updated = await edit.update(
            after,
            password_hash=password_hash,
            revoke=demoted or bool(password_hash),
            claims_email=claims_email,
        )
        changes = _changes(before, updated, is_password_new=bool(password_hash))
        if by is not None and changes:
            await edit.record(AuditEntry(by, "user.updated", user_id, changes))
        return updated


async def remove_user(
    users: Users,
    account: str,
    user_id: str,
    by: Actor | None = None,
    *,
    caller: Principal | None = None,
) -> None:
    """Delete one user; its tokens become invalid.

    Raises:
        NotFound: no such user.
        Conflict: it is the account's last admin.
        Unauthenticated: the caller's token has been revoked meanwhile.
    """
    async with _editing(users, account, caller) as edit:
        user = await edit.get(user_id)
        if user.role is Role.ADMIN:
            await _require_another_admin(edit)
        await edit.delete(user_id)
        if by is not None:
            details = {"username": user.username, "role": user.role}
            await edit.record(AuditEntry(by, "user.deleted", user_id, details))


@asynccontextmanager
async def _editing(users: Users, account: str, caller: Principal | None) -> AsyncIterator[UserEdit]:
    async with users.editing(account) as edit:
        if caller is not None:
            await edit.require_current(caller)
        yield edit


def _changes(before: User, after: User, *, is_password_new: bool) -> dict[str, Any]:
    """What changed: user names, roles and projects with their new values; of the rest, that it did."""
    changes: dict[str, Any] = {}
    for name, wire in (("username", "username"), ("role", "role"), ("project_ids", "projectIds")):
        if getattr(before, name) != getattr(after, name):
            changes[wire] = getattr(after, name)
    changed = [
        *changed_fields(before, after, ("name", "email")),
        *(["password"] if is_password_new else []),
    ]
    return changes | ({"changed": changed} if changed else {})


async def _require_another_admin(edit: UserEdit) -> None:
    if await edit.count_admins() < 2:
        raise Conflict("the account would be left without an admin")
