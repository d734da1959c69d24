"""The calls on access tokens and API tokens, reached as `client.tokens` and `client.api_tokens`."""

from broker.client import query
from broker.client.engine import Group
from broker.client.errors import ConnectionFailed
from broker.client.models import ApiToken, Token
from broker.client.query import TimeLike

_MOST_SECRETS = 5  # API tokens made for one, when replies get lost


class Tokens(Group):
    """Access tokens of the caller."""

    async def create(self) -> Token:
        """Log in now. Calls do so by themselves when they need a token.

        Raises:
            BadCredentials: what the client logs in with is wrong.
            ValueError: the client has nothing to log in with.
        """
        return await self._engine.login()


class ApiTokens(Group):
    """API tokens of the caller."""

    async def create(self, name: str, expires: TimeLike | None = None) -> ApiToken:
        """Make an API token; its `token` is shown here only. None never ends it.

        A secret that got lost with the reply is nobody's: that token is revoked, and another one made.

        Raises:
            Conflict: the caller has as many as it may.
            ConnectionFailed: the secret got lost again and again.
        """
        body = query.fields({"name": name, "expires": expires})
        for _ in range(_MOST_SECRETS):
            made = await self._create("/users/me/tokens", ApiToken, body, None)
            if made.token is not None:
                return made
            await self.delete(made.id)
        raise ConnectionFailed("the replies that contain the secret were lost")

    async def list(self) -> tuple[ApiToken, ...]:
        """The caller's API tokens, oldest first, without their secrets."""
        return await self._get("/users/me/tokens", tuple[ApiToken, ...])

    async def delete(self, token_id: str, *, idempotency_key: str | None = None) -> None:
        """Revoke an API token, and the access tokens fetched with it. Raises NotFound."""
        await self._delete(query.path("users", "me", "tokens", token_id), idempotency_key)
