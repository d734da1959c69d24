"""The calls on users, reached as `client.users`."""

from collections.abc import Iterable
from typing import Any

from broker.client import query
from broker.client.engine import Call, Engine
from broker.client.errors import ConnectionFailed, ProtocolError
from broker.client.models import ApiToken, User
from broker.client.query import UNSET, TimeLike, Unset

_MOST_SECRETS = 5  # API tokens made for one, when replies get lost


class Users:
    """Users of the account. Every method may raise what `Engine.send` raises."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def me(self) -> User:
        """The caller."""
        return await self._engine.send(Call("GET", "/users/me", User.parse))

    async def list(self) -> tuple[User, ...]:
        """All users of the account."""
        return await self._engine.send(Call("GET", "/users", _users))

    async def get(self, user_id: str) -> User:
        """One user. Raises NotFound."""
        return await self._engine.send(Call("GET", query.path("users", user_id), User.parse))

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
        """Create a user; `users.roles` lists the roles. Raises Conflict when the name is taken."""
        body: dict[str, Any] = {"username": username, "password": password, "role": role}
        optional = {"name": name, "email": email, "projectIds": [*project_ids] or None}
        body |= {field: value for field, value in optional.items() if value is not None}
        return await self._engine.send(Call("POST", "/users", User.parse, body=body, key=idempotency_key))

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
        body = query.fields(
            {
                "username": username,
                "password": password,
                "role": role,
                "name": name,
                "email": email,
                "projectIds": project_ids if isinstance(project_ids, Unset) else [*project_ids],
            }
        )
        target = query.path("users", user_id)
        return await self._engine.send(Call("PUT", target, User.parse, body=body, key=idempotency_key))

    async def delete(self, user_id: str, *, idempotency_key: str | None = None) -> None:
        """Delete a user; its tokens end with it. Raises NotFound, Conflict for the last admin."""
        target = query.path("users", user_id)
        await self._engine.send(Call("DELETE", target, lambda _: None, key=idempotency_key))

    async def create_api_token(self, name: str, expires: TimeLike | None = None) -> ApiToken:
        """Make an API token of the caller; its `token` is shown here only. None never ends it.

        A secret that got lost with the reply is nobody's: that token is revoked, and another one made.

        Raises:
            Conflict: the caller has as many as it may.
            ConnectionFailed: the secret got lost again and again.
        """
        body = query.fields({"name": name, "expires": expires})
        for _ in range(_MOST_SECRETS):
            made = await self._engine.send(Call("POST", "/users/me/tokens", ApiToken.parse, body=body))
            if made.token is not None:
                return made
            await self.delete_api_token(made.id)
        raise ConnectionFailed("the replies with the secret got lost")

    async def api_tokens(self) -> tuple[ApiToken, ...]:
        """The caller's API tokens, oldest first, without their secrets."""
        return await self._engine.send(Call("GET", "/users/me/tokens", _api_tokens))

    async def delete_api_token(self, token_id: str, *, idempotency_key: str | None = None) -> None:
        """Revoke an API token of the caller, and the access tokens fetched with it. Raises NotFound."""
        target = query.path("users", "me", "tokens", token_id)
        await self._engine.send(Call("DELETE", target, lambda _: None, key=idempotency_key))

    async def roles(self) -> tuple[str, ...]:
        """The names of all roles."""
        return await self._engine.send(Call("GET", "/users/roles", tuple))


def _api_tokens(raw: Any) -> tuple[ApiToken, ...]:
    if not isinstance(raw, list):
        raise ProtocolError("the broker sent no list")
    return tuple(ApiToken.parse(item) for item in raw)


def _users(raw: Any) -> tuple[User, ...]:
    if not isinstance(raw, list):
        raise ProtocolError("the broker sent no list")
    return tuple(User.parse(item) for item in raw)
