"""The calls on users, reached as `client.users`."""

from collections.abc import Iterable
from typing import Any

from broker.client import query
from broker.client.engine import Group
from broker.client.models import User
from broker.client.query import UNSET, Unset


class Users(Group):
    """Users of the account."""

    async def get_me(self) -> User:
        """The caller."""
        return await self._get("/users/me", User)

    async def list(self) -> tuple[User, ...]:
        """All users of the account."""
        return await self._get("/users", tuple[User, ...])

    async def get(self, user_id: str) -> User:
        """One user. Raises NotFound."""
        return await self._get(query.path("users", user_id), User)

    async def create(
        self,
        username: str,
        password: str,
        role: str,
        *,
        name: str | None = None,
        email: str | None = None,
        project_ids: Iterable[str] = (),
        idempotency_key: str | None = None,
    ) -> User:
        """Create a user; `users.list_roles` lists the roles. Raises Conflict when the name is taken."""
        body: dict[str, Any] = {"username": username, "password": password, "role": role}
        optional = {"name": name, "email": email, "projectIds": [*project_ids] or None}
        body |= {field: value for field, value in optional.items() if value is not None}
        return await self._create("/users", User, body, idempotency_key)

    async def update(
        self,
        user_id: str,
        *,
        username: str | Unset = UNSET,
        password: str | Unset = UNSET,
        role: str | Unset = UNSET,
        name: str | Unset | None = UNSET,
        email: str | Unset | None = UNSET,
        project_ids: Iterable[str] | Unset = UNSET,
        idempotency_key: str | None = None,
    ) -> User:
        """Change what is given of a user; `me` as id is the caller."""
        values = {
            "username": username,
            "password": password,
            "role": role,
            "name": name,
            "email": email,
            "projectIds": project_ids if isinstance(project_ids, Unset) else [*project_ids],
        }
        return await self._update(query.path("users", user_id), User, values, idempotency_key)

    async def delete(self, user_id: str, *, idempotency_key: str | None = None) -> None:
        """Delete a user; its tokens end with it. Raises NotFound, Conflict for the last admin."""
        await self._delete(query.path("users", user_id), idempotency_key)

    async def list_roles(self) -> tuple[str, ...]:
        """The names of all roles."""
        return await self._get("/users/roles", tuple[str, ...])
