"""Users in PostgreSQL: reading them, and changing them within the rules that hold among them."""

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import asyncpg

from broker.clock import to_datetime, to_ms
from broker.domain.audit import AuditEntry
from broker.domain.users import Principal, Role, User
from broker.errors import Conflict, NotFound, Unauthenticated
from broker.storage.accounts import unknown_account
from broker.storage.audit import append_audit
from broker.storage.database import Repository
from broker.storage.revocations import record_revocation, wake_listeners

_COLUMNS = "id, username, role, name, email, project_ids, created_time, updated_time"
_SELECT_ONE = f"SELECT {_COLUMNS} FROM users WHERE account = $1 AND id = $2"  # noqa: S608 - constants
_SELECT_ALL = f"SELECT {_COLUMNS} FROM users WHERE account = $1 ORDER BY username"  # noqa: S608 - constants
_SELECT_MEMBERS = f"""
SELECT {_COLUMNS} FROM users WHERE account = $1 AND $2 = ANY(project_ids) ORDER BY username
"""  # noqa: S608 - constants
_SELECT_CREDENTIALS = f"""
SELECT {_COLUMNS}, password_hash, tokens_valid_from FROM users WHERE account = $1 AND username = $2
"""  # noqa: S608 - constants
_SELECT_STANDINGS = """
SELECT account, id, username, role, project_ids, tokens_valid_from,
       ARRAY(SELECT api_tokens.id FROM api_tokens WHERE user_id = users.id) AS api_token_ids
FROM users WHERE id = ANY($1)
"""
_REPLACE_HASH = "UPDATE users SET password_hash = $4 WHERE account = $1 AND id = $2 AND password_hash = $3"

# Serialises everything that changes users of an account, and leaves its programs alone.
_LOCK_ACCOUNT = "SELECT 1 FROM accounts WHERE name = $1 FOR NO KEY UPDATE"
_COUNT = "SELECT count(*) FROM users WHERE account = $1"
_IS_CURRENT = """
SELECT FROM users WHERE account = $1 AND id = $2 AND tokens_valid_from = $3
    AND ($4::text IS NULL OR EXISTS (SELECT FROM api_tokens WHERE user_id = users.id AND api_tokens.id = $4))
"""
_COUNT_ADMINS = "SELECT count(*) FROM users WHERE account = $1 AND role = 'admin'"
_INSERT = f"""
INSERT INTO users (account, id, username, password_hash, role, name, email, project_ids,
                   tokens_valid_from, created_time, updated_time)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $9, $9)
RETURNING {_COLUMNS}
"""  # noqa: S608 - constants
# A state of the credentials is named by a millisecond; the next one is later even if the clock is not.
_UPDATE = f"""
UPDATE users SET
    username = $3, role = $4, name = $5, email = $6, project_ids = $7, updated_time = $8,
    password_hash = coalesce($9, password_hash),
    tokens_valid_from = CASE WHEN $10
        THEN greatest($8, tokens_valid_from + interval '1 millisecond') ELSE tokens_valid_from END,
    email_is_claimed = CASE WHEN email IS DISTINCT FROM $6 THEN $11 ELSE email_is_claimed END
WHERE account = $1 AND id = $2
RETURNING {_COLUMNS}, tokens_valid_from
"""  # noqa: S608 - constants
# API tokens are as good as a password: whoever changes it because it was stolen wants them gone as well.
_DELETE_API_TOKENS = "DELETE FROM api_tokens WHERE user_id = $1"
_DELETE = """
DELETE FROM users WHERE account = $1 AND id = $2
RETURNING greatest(date_trunc('milliseconds', now()), tokens_valid_from + interval '1 millisecond')
"""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a log-in is checked against, and the state of it that a token will be bound to."""

    user: User
    password_hash: str = field(repr=False)
    valid_from_ms: int


@dataclass(frozen=True, slots=True)
class Standing:
    """What a user's tokens are worth at present."""

    account: str
    user_id: str
    username: str
    role: Role
    project_ids: frozenset[str]
    valid_from_ms: int
    api_token_ids: frozenset[str] = frozenset()


class Users(Repository):
    """The users of all accounts; every method sees one account only, `standings` excepted."""

    async def get(self, account: str, user_id: str) -> User:
        """One user. Raises NotFound."""
        row = await self._database.fetchrow(_SELECT_ONE, account, user_id)
        return _found(row)

    async def find_credentials(self, account: str, username: str) -> Credentials | None:
        """What a log-in by this name is checked against, or None without such a user."""
        if "\x00" in username:  # which no stored text can hold
            return None
        row = await self._database.fetchrow(_SELECT_CREDENTIALS, account, username)
        if row is None:
            return None
        return Credentials(user_of_row(row), row["password_hash"], to_ms(row["tokens_valid_from"]))

    async def standings(self, user_ids: Iterable[str]) -> list[Standing]:
        """The present standing of each of these users that exists, of whatever account, in no order."""
        return [_standing(row) for row in await self._database.fetch(_SELECT_STANDINGS, list(user_ids))]

    async def replace_hash(self, account: str, user_id: str, old: str, new: str) -> None:
        """Store another hash of the same password, unless the password has changed meanwhile."""
        await self._database.execute(_REPLACE_HASH, account, user_id, old, new)

    @asynccontextmanager
    async def editing(self, account: str) -> AsyncIterator["UserEdit"]:
        """A transaction that changes users, the only one in its account at a time. Raises NotFound."""
        async with self._database.transaction() as connection:
            if await connection.fetchval(_LOCK_ACCOUNT, account) is None:
                raise unknown_account()
            yield UserEdit(account, connection)

    async def list_members(self, account: str, project_id: str) -> list[User]:
        """The users who belong to the project, by name."""
        return [user_of_row(row) for row in await self._database.fetch(_SELECT_MEMBERS, account, project_id)]

    async def list(self, account: str) -> list[User]:
        """All users of the account, by name."""
        return [user_of_row(row) for row in await self._database.fetch(_SELECT_ALL, account)]


class UserEdit:
    """Changes to the users of one account inside one transaction; nobody else changes them meanwhile."""

    def __init__(self, account: str, connection: Any) -> None:
        self._account = account
        self._connection = connection

    async def get(self, user_id: str) -> User:
        """One user as it is inside the transaction. Raises NotFound."""
        return _found(await self._connection.fetchrow(_SELECT_ONE, self._account, user_id))

    async def count(self) -> int:
        """How many users the account has."""
        return int(await self._connection.fetchval(_COUNT, self._account))

    async def count_admins(self) -> int:
        """How many of them are admins."""
        return int(await self._connection.fetchval(_COUNT_ADMINS, self._account))

    async def insert(self, user: User, password_hash: str) -> User:
        """Add a user; `created_time` counts for all its times. Raises Conflict when the name is taken."""
        with _name_taken(user.username):
            row = await self._connection.fetchrow(
                _INSERT,
                self._account,
                user.id,
                user.username,
                password_hash,
                user.role.value,
                user.name,
                user.email,
                user.project_ids,
                user.created_time,
            )
        return user_of_row(row)

    async def update(
        self,
        user: User,
        *,
        password_hash: str | None = None,
        revoke: bool = False,
        claims_email: bool = False,
    ) -> User:
        """Store the user's fields, and a new password if there is one.

        Args:
            revoke: whether the tokens issued so far become invalid, API tokens included.
            claims_email: whether a new e-mail address is the user's own word, and so identifies nobody.

        Raises:
            NotFound: no such user.
            Conflict: the user name is taken.
        """
        with _name_taken(user.username):
            row = await self._connection.fetchrow(
                _UPDATE,
                self._account,
                user.id,
                user.username,
                user.role.value,
                user.name,
                user.email,
                user.project_ids,
                user.updated_time,
                password_hash,
                revoke,
                claims_email,
            )
        updated = _found(row)
        if revoke:
            await self._connection.execute(_DELETE_API_TOKENS, user.id)
            await record_revocation(self._connection, self._account, user.id, row["tokens_valid_from"])
        await wake_listeners(self._connection)
        return updated

    async def require_current(self, caller: Principal) -> None:
        """Raise Unauthenticated when the caller's token has ended: whoever was demoted changes nobody."""
        assert caller.valid_from_ms is not None, "every token has it"
        valid_from = to_datetime(caller.valid_from_ms)
        row = await self._connection.fetchrow(
            _IS_CURRENT, self._account, caller.subject, valid_from, caller.api_token_id
        )
        if row is None:
            raise Unauthenticated("the access token has been revoked")

    async def record(self, entry: AuditEntry) -> None:
        """Write to the account's audit log, in the same transaction."""
        await append_audit(self._connection, self._account, entry)

    async def delete(self, user_id: str) -> None:
        """Remove a user and make its tokens invalid. Raises NotFound."""
        valid_from = await self._connection.fetchval(_DELETE, self._account, user_id)
        if valid_from is None:
            raise _unknown()
        await record_revocation(self._connection, self._account, user_id, valid_from)
        await wake_listeners(self._connection)


@contextmanager
def _name_taken(username: str) -> Iterator[None]:
    try:
        yield
    except asyncpg.UniqueViolationError as error:
        raise Conflict(f"the user name {username} is taken") from error


def _unknown() -> NotFound:
    return NotFound("there is no such user")


def _found(row: Any) -> User:
    if row is None:
        raise _unknown()
    return user_of_row(row)


def user_of_row(row: Any) -> User:
    """The user of a row that has its columns."""
    return User.model_construct(
        **{name: row[name] for name in User.model_fields} | {"role": Role(row["role"])}
    )


def _standing(row: Any) -> Standing:
    return Standing(
        account=row["account"],
        user_id=row["id"],
        username=row["username"],
        role=Role(row["role"]),
        project_ids=frozenset(row["project_ids"]),
        valid_from_ms=to_ms(row["tokens_valid_from"]),
        api_token_ids=frozenset(row["api_token_ids"]),
    )
