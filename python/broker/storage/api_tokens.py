"""API tokens in PostgreSQL, by the hash of their secrets."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from broker.clock import to_datetime, to_ms
from broker.domain.api_tokens import MAX_API_TOKENS, ApiToken
from broker.domain.audit import Actor, AuditEntry
from broker.domain.users import User
from broker.errors import Conflict, NotFound, Unauthenticated
from broker.storage.audit import append_audit
from broker.storage.database import Repository
from broker.storage.revocations import record_api_token_revocation, wake_listeners
from broker.storage.users import user_of_row

# The row's lock serialises the makers of one user's tokens, and orders them against a change of its password:
# whoever waited for one finds another state and makes nothing.
_LOCK_USER = """
SELECT 1 FROM users WHERE account = $1 AND id = $2 AND tokens_valid_from = $3 FOR NO KEY UPDATE
"""
_COUNT = "SELECT count(*) FROM api_tokens WHERE user_id = $1"
_INSERT = """
INSERT INTO api_tokens (account, user_id, id, name, secret_hash, expires, created_time)
VALUES ($1, $2, $3, $4, $5, $6, $7)
"""
_SELECT_ALL = """
SELECT id, name, created_time, expires FROM api_tokens
WHERE account = $1 AND user_id = $2 ORDER BY created_time, id
"""
_DELETE = "DELETE FROM api_tokens WHERE account = $1 AND user_id = $2 AND id = $3 RETURNING name"
_SELECT_HOLDER = """
SELECT users.id, username, role, users.name, email, project_ids, users.created_time, updated_time,
       tokens_valid_from, api_tokens.id AS token_id, expires
FROM api_tokens JOIN users ON users.id = user_id
WHERE api_tokens.account = $1 AND secret_hash = $2 AND (expires IS NULL OR expires > $3)
"""


@dataclass(frozen=True, slots=True)
class Holder:
    """Whose API token it is, and the state of the user's credentials that an access token is bound to."""

    user: User
    valid_from_ms: int
    token_id: str
    expires_ms: int | None


class ApiTokens(Repository):
    """The API tokens of all users. Every method sees one account only."""

    async def add(
        self, account: str, by: Actor, valid_from_ms: int, token: ApiToken, secret_hash: bytes
    ) -> None:
        """Store a new token of the user `by`, and log that.

        Args:
            valid_from_ms: the state of the credentials of whoever asks; a password that has been changed
                meanwhile makes no more tokens.

        Raises:
            Unauthenticated: the user is gone or its credentials are in another state.
            Conflict: the user has as many tokens as it may.
        """
        valid_from: datetime = to_datetime(valid_from_ms)
        user_id = by.user_id
        async with self._database.transaction() as connection:
            if await connection.fetchval(_LOCK_USER, account, user_id, valid_from) is None:
                raise Unauthenticated("the access token has been revoked")
            if await connection.fetchval(_COUNT, user_id) >= MAX_API_TOKENS:
                raise Conflict(f"a user has at most {MAX_API_TOKENS} API tokens; revoke one first")
            await connection.execute(
                _INSERT,
                account,
                user_id,
                token.id,
                token.name,
                secret_hash,
                token.expires,
                token.created_time,
            )
            entry = AuditEntry(by, "apiToken.created", token.id, {"name": token.name})
            await append_audit(connection, account, entry)

    async def list(self, account: str, user_id: str) -> list[ApiToken]:
        """A user's tokens, oldest first; expired ones too."""
        rows = await self._database.fetch(_SELECT_ALL, account, user_id)
        return [_token(row) for row in rows]

    async def delete(self, account: str, by: Actor, token_id: str) -> None:
        """Revoke a token of the user `by` with the access tokens that it was exchanged for, and log that.

        Raises:
            NotFound: the user has no such token.
        """
        async with self._database.transaction() as connection:
            name = await connection.fetchval(_DELETE, account, by.user_id, token_id)
            if name is None:
                raise NotFound("there is no such API token")
            entry = AuditEntry(by, "apiToken.revoked", token_id, {"name": name})
            await append_audit(connection, account, entry)
            await record_api_token_revocation(connection, account, by.user_id, token_id)
            await wake_listeners(connection)

    async def find_holder(self, account: str, secret_hash: bytes, now_ms: int) -> Holder | None:
        """Whose token it is, or None for one that is unknown, revoked or expired."""
        row = await self._database.fetchrow(_SELECT_HOLDER, account, secret_hash, to_datetime(now_ms))
        if row is None:
            return None
        expires = row["expires"]
        return Holder(
            user=user_of_row(row),
            valid_from_ms=to_ms(row["tokens_valid_from"]),
            token_id=row["token_id"],
            expires_ms=None if expires is None else to_ms(expires),
        )


def _token(row: Any) -> ApiToken:
    return ApiToken.model_construct(
        id=row["id"], name=row["name"], created_time=row["created_time"], expires=row["expires"]
    )
