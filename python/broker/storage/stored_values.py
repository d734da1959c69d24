"""Stored values in PostgreSQL, each with the number by which its channel tells it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

import asyncpg

from broker.clock import to_datetime
from broker.domain.stored_values import stored_value_json
from broker.storage.claims import first_result
from broker.storage.database import Database
from broker.storage.programs import Claim

_STORE = "SELECT store_value($1, $2, $3, $4, $5, $6, $7, $8, $9)"
_STORE_ALL = "SELECT store_values($1, $2, $3, $4, $5, $6, $7, $8, $9)"
_FIND = """
SELECT v.account, v.project_id, v.id, v.metadata::text, v.created_time
FROM unnest($1::text[], $2::text[], $3::text[]) AS wanted (account, project_id, id)
JOIN stored_values v ON v.account = wanted.account AND v.project_id = wanted.project_id AND v.id = wanted.id
WHERE NOT v.superseded
"""
_GROUP = 200  # values read, or stored, by one query
_NEWEST = """
SELECT (SELECT coalesce(max(number), 0) FROM stored_values WHERE account = $1 AND project_id = $2)
FROM projects WHERE account = $1 AND id = $2
"""
_AFTER = """
SELECT number, id, metadata::text, created_time FROM stored_values
WHERE account = $1 AND project_id = $2 AND number > $3 ORDER BY number LIMIT $4
"""
_PURGE = """
DELETE FROM stored_values WHERE number IN (
    SELECT number FROM stored_values WHERE superseded AND created_time < $1 LIMIT $2)
"""


class StoreOutcome(StrEnum):
    """What became of a value; see `store_value` in the migrations."""

    CREATED = "created"
    REPLACED = "replaced"
    UNKNOWN = "unknown"
    TAKEN = "taken"
    MANY = "many"
    LARGE = "large"

    @property
    def is_stored(self) -> bool:
        """Whether the value is there now."""
        return self in (StoreOutcome.CREATED, StoreOutcome.REPLACED)


@dataclass(frozen=True, slots=True)
class Quota:
    """The most that one project may store: values, and bytes of their compact JSON in all."""

    values: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class NewValue:
    """A value to store; `metadata` is compact JSON."""

    project_id: str
    id: str
    metadata: bytes
    time: datetime


class StoredValueRow(NamedTuple):
    """One storing. `value` is the JSON of the `StoredValue`."""

    number: int
    value: bytes


class _NotStored(Exception):
    """Ends the transaction of a key whose value could not be stored, so that the key stays free."""

    def __init__(self, outcome: StoreOutcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome


@dataclass(frozen=True, slots=True, eq=False)
class _Storing:
    """One call of `store_value`; equal to no other."""

    arguments: tuple[Any, ...]


class StoredValues:
    """The repository. Every method raises `Unavailable` while the database is away."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._found = database.groups(self._find, _GROUP)
        self._stored = database.groups(self._store, _GROUP)

    async def store(
        self, account: str, value: NewValue, quota: Quota, key: Claim | None, *, may_replace: bool
    ) -> StoreOutcome | bytes:
        """Store a value within the project's quota, wholly or not at all.

        Returns:
            What became of it, or the first result of `key` when it has one; then nothing was done.

        Raises:
            Conflict: the key was used for another request.
        """
        arguments = (
            account,
            value.project_id,
            value.id,
            value.metadata.decode(),
            len(value.metadata),
            value.time,
            may_replace,
            quota.values,
            quota.total_bytes,
        )
        if key is None:
            outcome = await self._stored.ask(_Storing(arguments))
            assert outcome is not None, "every storing of a group has its outcome"
            return outcome
        try:
            async with self._database.transaction() as connection:
                stored = await first_result(connection, account, key, value.time)
                if stored is not None:
                    return stored
                outcome = StoreOutcome(await connection.fetchval(_STORE, *arguments))
                if not outcome.is_stored:
                    raise _NotStored(outcome)
                return outcome
        except _NotStored as refusal:
            return refusal.outcome

    async def find(self, account: str, project_id: str, value_id: str) -> bytes | None:
        """The JSON of the stored value, or None."""
        return await self._found.ask((account, project_id, value_id))

    async def _find(
        self, connection: asyncpg.Connection, keys: Sequence[tuple[str, str, str]]
    ) -> dict[tuple[str, str, str], bytes]:
        rows = await connection.fetch(_FIND, *zip(*keys, strict=True))
        return {tuple(row[:3]): stored_value_json(row[2], row[3].encode(), row[4]) for row in rows}

    async def _store(
        self, connection: asyncpg.Connection, storings: Sequence["_Storing"]
    ) -> dict["_Storing", StoreOutcome]:
        """Store values in one transaction, which is one statement; each project's in their order."""
        arguments = zip(*(storing.arguments for storing in storings), strict=True)
        outcomes = await connection.fetchval(_STORE_ALL, *arguments)
        return {storing: StoreOutcome(outcome) for storing, outcome in zip(storings, outcomes, strict=True)}

    async def newest(self, account: str, project_id: str) -> int | None:
        """The number of the project's newest storing, 0 without one; None when there is no such project."""
        async with self._database.connection() as connection:
            newest = await connection.fetchval(_NEWEST, account, project_id)
        return None if newest is None else int(newest)

    async def after(self, account: str, project_id: str, number: int, limit: int) -> list[StoredValueRow]:
        """At most `limit` storings after `number`, oldest first."""
        async with self._database.connection() as connection:
            rows = await connection.fetch(_AFTER, account, project_id, number, limit)
        return [StoredValueRow(row[0], stored_value_json(row[1], row[2].encode(), row[3])) for row in rows]

    async def purge(self, before_ms: int, limit: int) -> int:
        """Drop at most `limit` superseded values stored before `before_ms`; returns how many."""
        async with self._database.connection() as connection:
            status = await connection.execute(_PURGE, to_datetime(before_ms), limit)
        return int(status.split()[1])
