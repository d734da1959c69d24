"""Identity providers in PostgreSQL, and the users of their subjects."""

from dataclasses import dataclass
from typing import Any

import asyncpg
import orjson

from broker.clock import to_ms
from broker.domain.audit import Actor, AuditEntry
from broker.domain.identities import Identity, IdentityProvider
from broker.domain.users import Role, User
from broker.errors import NotFound
from broker.storage.accounts import unknown_account
from broker.storage.audit import append_audit
from broker.storage.database import Repository
from broker.storage.users import user_of_row

_FIND = """
SELECT issuer, audiences, jwks_url, role_claim, roles FROM identity_providers
WHERE account = $1 AND issuer = $2
"""
_LIST = """
SELECT issuer, audiences, jwks_url, role_claim, roles FROM identity_providers
WHERE account = $1 ORDER BY issuer
"""
_PUT = """
INSERT INTO identity_providers (account, issuer, audiences, jwks_url, role_claim, roles)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (account, issuer) DO UPDATE SET audiences = EXCLUDED.audiences, jwks_url = EXCLUDED.jwks_url,
    role_claim = EXCLUDED.role_claim, roles = EXCLUDED.roles
RETURNING xmax = 0 AS is_new
"""
_DELETE = "DELETE FROM identity_providers WHERE account = $1 AND issuer = $2 RETURNING issuer"
_COLUMNS = """
SELECT users.id, username, role, name, email, project_ids, created_time, updated_time, tokens_valid_from
FROM users
"""
_BY_SUBJECT = f"""{_COLUMNS} JOIN user_identities AS identity ON identity.user_id = users.id
WHERE identity.account = $1 AND issuer = $2 AND subject = $3
"""
_BY_EMAIL = f"{_COLUMNS} WHERE account = $1 AND lower(email) = lower($2) AND NOT email_is_claimed LIMIT 2"
_LINK = """
INSERT INTO user_identities (account, issuer, subject, user_id) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING
"""


@dataclass(frozen=True, slots=True)
class Match:
    """A user, and the state of its credentials that an access token is bound to."""

    user: User
    valid_from_ms: int


class IdentityProviders(Repository):
    """The providers of all accounts; every method sees one account only."""

    async def find(self, account: str, issuer: str) -> IdentityProvider | None:
        """The provider of this issuer, or None."""
        row = await self._database.fetchrow(_FIND, account, issuer)
        return None if row is None else _provider(row)

    async def list(self, account: str) -> list[IdentityProvider]:
        """All providers of the account, by issuer."""
        return [_provider(row) for row in await self._database.fetch(_LIST, account)]

    async def put(self, account: str, provider: IdentityProvider, by: Actor) -> None:
        """Add a provider, or replace the one of its issuer, and log it. Raises NotFound for the account."""
        roles = orjson.dumps({value: role.value for value, role in provider.roles.items()}).decode()
        async with self._database.transaction() as connection:
            try:
                is_new = await connection.fetchval(
                    _PUT,
                    account,
                    provider.issuer,
                    list(provider.audiences),
                    provider.jwks_url,
                    provider.role_claim,
                    roles,
                )
            except asyncpg.ForeignKeyViolationError:
                raise unknown_account() from None
            action = f"identityProvider.{'created' if is_new else 'updated'}"
            await append_audit(connection, account, AuditEntry(by, action, provider.issuer))

    async def delete(self, account: str, issuer: str, by: Actor) -> None:
        """Remove a provider, forget its subjects, and log it. Raises NotFound."""
        async with self._database.transaction() as connection:
            if await connection.fetchval(_DELETE, account, issuer) is None:
                raise NotFound("the account has no identity provider of this issuer")
            await append_audit(connection, account, AuditEntry(by, "identityProvider.deleted", issuer))

    async def match(self, account: str, identity: Identity) -> Match | None:
        """The user that an identity is: by its subject, else by its e-mail address, which is remembered.

        None without such a user, and where several have the address.
        """
        async with self._database.transaction() as connection:
            row = await connection.fetchrow(_BY_SUBJECT, account, identity.issuer, identity.subject)
            if row is None and identity.email is not None:
                rows = await connection.fetch(_BY_EMAIL, account, identity.email)
                if len(rows) == 1:
                    row = rows[0]
                    await connection.execute(_LINK, account, identity.issuer, identity.subject, row["id"])
        return None if row is None else Match(user_of_row(row), to_ms(row["tokens_valid_from"]))


def _provider(row: Any) -> IdentityProvider:
    return IdentityProvider(
        issuer=row["issuer"],
        audiences=tuple(row["audiences"]),
        jwks_url=row["jwks_url"],
        role_claim=row["role_claim"],
        roles={value: Role(role) for value, role in orjson.loads(row["roles"]).items()},
    )
