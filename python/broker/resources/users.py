"""Users: the caller's profile, and for admins all users."""

from typing import Any

from pydantic import Field

from broker.auth import membership
from broker.domain import permissions
from broker.domain.audit import Actor
from broker.domain.users import Email, NewPassword, PersonName, ProjectIds, Role, User, Username
from broker.domain.values import Id, Model
from broker.errors import InvalidRequest
from broker.operations.context import Context
from broker.operations.listing import NoParams
from broker.operations.program_access import check_project_ids
from broker.operations.registry import Operation, Route, of_resource

_SET_BY_SERVER = {"id", "created_time", "updated_time"}
ROLES = [role.value for role in Role]


class UserParams(Model):
    """Which user."""

    user_id: Id


class NewUserParams(Model):
    """A user to make. Absent and null mean the same."""

    username: Username
    password: NewPassword = Field(repr=False)
    role: Role = Field(strict=False)
    name: PersonName | None = None
    email: Email | None = None
    project_ids: ProjectIds | None = Field(default=None, description="Projects that the user belongs to.")


class ProfileParams(Model):
    """What to change of a user. Absent fields are kept; null clears `name`, `email` and `projectIds`.

    The fields that the server sets are taken, so that a user who was read can be sent back, and ignored.
    """

    id: Id | None = Field(default=None, description="The user's id, which cannot change.")

    username: Username = ""
    password: NewPassword = Field(default="", repr=False)
    role: Role = Field(default=Role.USER, strict=False)
    name: PersonName | None = None
    email: Email | None = None
    project_ids: ProjectIds | None = Field(default=None, description="Only an admin may change it.")
    created_time: object = Field(default=None, description="Ignored.")
    updated_time: object = Field(default=None, description="Ignored.")

    def apply(self, before: User) -> User:
        """The user with the fields that the request carries."""
        fields = self.model_fields_set & (User.model_fields.keys() - _SET_BY_SERVER)
        changes: dict[str, Any] = {name: getattr(self, name) for name in fields}
        if "project_ids" in changes:
            changes["project_ids"] = list(dict.fromkeys(self.project_ids or []))
        return before.model_copy(update=changes)


class UserChangeParams(ProfileParams):
    """What to change, and of whom."""

    user_id: Id


async def get_current_user(context: Context, _params: NoParams) -> User:
    """The user whose token this is."""
    return await context.services.users.get(context.principal.account, context.subject)


async def update_current_user(context: Context, params: ProfileParams) -> User:
    """Change the own profile."""
    return await _change(context, context.subject, params)


async def list_users(context: Context, _params: NoParams) -> list[User]:
    """All users of the account, by name."""
    return await context.services.users.list(context.principal.account)


async def create_user(context: Context, params: NewUserParams) -> User:
    """Make a user."""
    services = context.services
    permissions.require_grantable(context.principal, params.role)
    check_project_ids("projectIds", *(params.project_ids or []))
    user = membership.build_user(
        services.clock,
        services.ids,
        username=params.username,
        role=params.role,
        name=params.name,
        email=params.email,
        project_ids=list(dict.fromkeys(params.project_ids or [])),
    )
    password_hash = await services.auth.hash_password(params.password, asker=context.asker)
    principal = context.principal
    by = Actor.of(principal)
    return await membership.add_user(
        services.users, principal.account, user, password_hash, by, caller=principal
    )


async def get_user(context: Context, params: UserParams) -> User:
    """One user. Only admins may read other users."""
    permissions.require_user(context.rule, context.principal, params.user_id)
    return await context.services.users.get(context.principal.account, params.user_id)


async def update_user(context: Context, params: UserChangeParams) -> User:
    """Change one user. Only admins may change other users."""
    permissions.require_user(context.rule, context.principal, params.user_id)
    return await _change(context, params.user_id, params)


async def delete_user(context: Context, params: UserParams) -> None:
    """Delete a user."""
    users, principal = context.services.users, context.principal
    by = Actor.of(principal)
    await membership.remove_user(users, principal.account, params.user_id, by, caller=principal)


async def list_roles(_context: Context, _params: NoParams) -> list[str]:
    """The names of all roles."""
    return list(ROLES)


async def _change(context: Context, user_id: str, params: ProfileParams) -> User:
    services, principal = context.services, context.principal
    if params.id not in (None, user_id):
        raise InvalidRequest.of_field("id", "must be the user's own; it cannot change")
    if params.password:
        permissions.require_own_login(principal, "changes no password")

    def change(before: User) -> User:
        after = params.apply(before)
        check_project_ids("projectIds", *(set(after.project_ids) - set(before.project_ids)))
        permissions.require_user_change(context.rule, principal, before, after)
        return after

    # Hashed before the transaction, which would otherwise hold up every other change of the account's users.
    password_hash = None
    if params.password:
        password_hash = await services.auth.hash_password(params.password, asker=context.asker)
    return await membership.change_user(
        services.users,
        services.clock,
        principal.account,
        user_id,
        change,
        password_hash,
        by=Actor.of(principal),
        caller=principal,
        claims_email=principal.role is not Role.ADMIN,
    )


_NO_PASSWORD = "An API token, and a token that came from one, changes no password (403)."  # noqa: S105 - a sentence
_ONE = {"userId": "0198b2c4-7a10-7c3e-9d1f-5b6a7c8d9e0f"}
_EXAMPLE = {
    "username": "producer",
    "password": "correct horse battery",
    "role": "producer",
    "name": "Kim Vo",
    "email": "kim@example.com",
}

OPERATIONS = of_resource(
    "Users",
    Operation(
        name="getCurrentUser",
        summary="Get the current user",
        handler=get_current_user,
        route=Route("GET", "/users/me"),
    ),
    Operation(
        name="updateCurrentUser",
        summary="Change the caller's name, e-mail address or password",
        handler=update_current_user,
        route=Route(
            "PUT",
            "/users/me",
            description=f"A new password ends all earlier tokens, this one too. {_NO_PASSWORD}",
        ),
        example={"name": "Kim Vo", "email": "kim@example.com"},
    ),
    Operation(
        name="listUsers",
        summary="List users",
        handler=list_users,
        is_list=True,
        route=Route("GET", "/users"),
    ),
    Operation(
        name="createUser",
        summary="Create a user",
        handler=create_user,
        route=Route("POST", "/users", status=201, location="/users/{id}"),
        example=_EXAMPLE,
    ),
    Operation(
        name="listRoles",
        summary="List the role names",
        handler=list_roles,
        route=Route("GET", "/users/roles"),
    ),
    Operation(
        name="getUser",
        summary="Get a user",
        handler=get_user,
        route=Route("GET", "/users/{userId}"),
        example=_ONE,
    ),
    Operation(
        name="updateUser",
        summary="Change a user",
        handler=update_user,
        route=Route(
            "PUT",
            "/users/{userId}",
            description=f"A lower role or a new password ends all earlier tokens of the user. {_NO_PASSWORD}",
        ),
        example=_ONE | {"role": "producer", "projectIds": ["football"]},
    ),
    Operation(
        name="deleteUser",
        summary="Delete a user",
        handler=delete_user,
        route=Route("DELETE", "/users/{userId}", status=204),
        example=_ONE,
    ),
)
