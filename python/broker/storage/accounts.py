"""Accounts in PostgreSQL."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from broker.domain.audit import Actor, AuditEntry
from broker.domain.quotas import Quotas
from broker.domain.values import is_account_name
from broker.errors import Conflict, InvalidRequest, NotFound
from broker.storage.audit import append_audit
from broker.storage.database import Repository

_COLUMNS = """
name, origins, created_time, keep_events_days, quota_programs, quota_events, quota_storage, quota_images
"""
_SELECT_ALL = f"SELECT {_COLUMNS} FROM accounts ORDER BY name"  # noqa: S608  # a constant
_SELECT_ONE = f"SELECT {_COLUMNS} FROM accounts WHERE name = $1"  # noqa: S608  # a constant
_INSERT = f"""
INSERT INTO accounts (name, origins, created_time) VALUES ($1, $2, now())
ON CONFLICT (name) DO NOTHING RETURNING {_COLUMNS}
"""  # noqa: S608  # a constant
_UPDATE_ORIGINS = f"""
UPDATE accounts SET origins = $2 WHERE name = $1 RETURNING {_COLUMNS}
"""  # noqa: S608  # a constant


@dataclass(frozen=True, slots=True)
class Account:
    """One tenant.

    Attributes:
        origins: the web origins whose pages may connect; None allows any, empty none.
        keep_events_days: after which events are deleted; None keeps them.
    """

    name: str
    origins: tuple[str, ...] | None
    created_time: datetime
    keep_events_days: int | None = None
    quotas: Quotas = field(default_factory=Quotas)


class Accounts(Repository):
    """The accounts. Every method raises `Unavailable` while the database is unavailable."""

    async def list(self) -> list[Account]:
        """All accounts, by name."""
        return [_account(row) for row in await self._database.fetch(_SELECT_ALL)]

    async def find(self, name: str) -> Account | None:
        """The account, or None."""
        if not is_account_name(name):
            return None
        row = await self._database.fetchrow(_SELECT_ONE, name)
        return row and _account(row)

    async def get(self, name: str) -> Account:
        """The account. Raises NotFound."""
        account = await self.find(name)
        if account is None:
            raise unknown_account()
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
                raise unknown_account()
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


def unknown_account() -> NotFound:
    """The error of an account that does not exist."""
    return NotFound("there is no such account")


def _array(origins: tuple[str, ...] | None) -> Any:
    return None if origins is None else list(origins)


def _account(row: Any) -> Account:
    origins = row["origins"]
    quotas = Quotas(row["quota_programs"], row["quota_events"], row["quota_storage"], row["quota_images"])
    origins = None if origins is None else tuple(origins)
    return Account(row["name"], origins, row["created_time"], row["keep_events_days"], quotas)
