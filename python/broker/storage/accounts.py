"""Accounts in PostgreSQL."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from broker.domain.audit import Actor, AuditEntry
from broker.domain.values import is_account_name
from broker.errors import Conflict, InvalidRequest, NotFound
from broker.storage.audit import append_audit
from broker.storage.database import Database

_SELECT_ALL = "SELECT name, origins, created_time FROM accounts ORDER BY name"
_SELECT_ONE = "SELECT name, origins, created_time FROM accounts WHERE name = $1"
_INSERT = """
INSERT INTO accounts (name, origins, created_time) VALUES ($1, $2, now())
ON CONFLICT (name) DO NOTHING RETURNING name, origins, created_time
"""
_UPDATE_ORIGINS = """
UPDATE accounts SET origins = $2 WHERE name = $1 RETURNING name, origins, created_time
"""


@dataclass(frozen=True, slots=True)
class Account:
    """One tenant. `origins` are the web origins whose pages may connect; None allows any, empty none."""

    name: str
    origins: tuple[str, ...] | None
    created_time: datetime


class Accounts:
    """The accounts. Every method raises `Unavailable` while the database is unavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list(self) -> list[Account]:
        """All accounts, by name."""
        async with self._database.connection() as connection:
            return [_account(row) for row in await connection.fetch(_SELECT_ALL)]

    async def find(self, name: str) -> Account | None:
        """The account, or None."""
        if not is_account_name(name):
            return None
        async with self._database.connection() as connection:
            row = await connection.fetchrow(_SELECT_ONE, name)
        return row and _account(row)

    async def get(self, name: str) -> Account:
        """The account. Raises NotFound."""
        account = await self.find(name)
        if account is None:
            raise _unknown()
        return account

    async def create(
        self, name: str, origins: tuple[str, ...] | None = None, by: Actor | None = None
    ) -> Account:
        """Make an account, and write to its audit log who did, if that is said.

        Raises:
            InvalidRequest: the name is no account name.
            Conflict: it is taken.
        """
        _check_name(name)
        async with self._database.transaction() as connection:
            row = await connection.fetchrow(_INSERT, name, _array(origins))
            if row is None:
                raise Conflict(f"the account {name} already exists")
            await _record(connection, by, "account.created", name, origins)
        return _account(row)

    async def ensure(self, name: str) -> Account:
        """The account, made when there is none. Safe to run in several processes at once."""
        try:
            return await self.create(name)
        except Conflict:
            return await self.get(name)

    async def set_origins(
        self, name: str, origins: tuple[str, ...] | None, by: Actor | None = None
    ) -> Account:
        """Replace the allowed origins; gateways follow within seconds. Raises NotFound."""
        async with self._database.transaction() as connection:
            row = await connection.fetchrow(_UPDATE_ORIGINS, name, _array(origins))
            if row is None:
                raise _unknown()
            await _record(connection, by, "account.updated", name, origins)
        return _account(row)


async def _record(
    connection: Any, by: Actor | None, action: str, name: str, origins: tuple[str, ...] | None
) -> None:
    if by is not None:
        await append_audit(connection, name, AuditEntry(by, action, name, {"origins": _array(origins)}))


def _check_name(name: str) -> None:
    if not is_account_name(name):
        raise InvalidRequest.of_field(
            "account", "must be 1 to 63 lowercase letters, digits and inner hyphens, as in a host name"
        )


def _unknown() -> NotFound:
    return NotFound("there is no such account")


def _array(origins: tuple[str, ...] | None) -> Any:
    return None if origins is None else list(origins)


def _account(row: Any) -> Account:
    origins = row["origins"]
    return Account(row["name"], None if origins is None else tuple(origins), row["created_time"])
