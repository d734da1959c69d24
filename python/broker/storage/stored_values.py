"""Stored values in PostgreSQL, each with the number by which its channel tells it."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from broker.clock import to_datetime
from broker.domain.stored_values import stored_value_json
from broker.storage.claims import first_result
from broker.storage.database import Database
from broker.storage.programs import Claim

_STORE = "SELECT store_value($1, $2, $3, $4, $5, $6, $7, $8, $9)"
_FIND = """
SELECT metadata::text, created_time FROM stored_values
WHERE account = $1 AND project_id = $2 AND id = $3 AND NOT superseded
"""
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


class StoredValues:
    """The repository. Every method raises `Unavailable` while the database is away."""

    def __init__(self, database: Database) -> None:
        self._database = database

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
            async with self._database.connection() as connection:
                return StoreOutcome(await connection.fetchval(_STORE, *arguments))
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
        async with self._database.connection() as connection:
            row = await connection.fetchrow(_FIND, account, project_id, value_id)
        return None if row is None else stored_value_json(value_id, row[0].encode(), row[1])

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
