"""Stored values in PostgreSQL, each with its number in the channel."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import asyncpg

from broker.clock import to_datetime
from broker.domain.stored_values import stored_value_json
from broker.domain.values import format_ms, format_time
from broker.errors import NotFound
from broker.storage.database import Database, Repository

_STORE = "SELECT store_value($1, $2, $3, $4, $5, $6, $7, $8, $9)"
# A group's values go to the server as columns of joined text: the driver takes an array apart in Python.
_SEPARATOR = "\x1f"  # is in no name and no number, and in JSON only as an escape
_COLUMNS = [f"string_to_array(${number}, E'\\x1f')" for number in range(1, 10)]
_STORE_ALL = """
SELECT store_values(
    {}, {}, {}, {}, {}::integer[], {}::timestamptz[], {}, {}::bigint[], {}::bigint[])
""".format(*_COLUMNS)
_FIND = """
SELECT wanted.place::integer, v.metadata::text, v.created_time
FROM unnest({}, {}, {}) WITH ORDINALITY AS wanted (account, project_id, id, place)
JOIN stored_values v ON v.account = wanted.account AND v.project_id = wanted.project_id AND v.id = wanted.id
WHERE NOT v.superseded
""".format(*_COLUMNS[:3])
_GROUP = 200  # values read, or stored, by one query
_HAS_PROJECT = "SELECT EXISTS (SELECT FROM projects WHERE account = $1 AND id = $2)"
_RECENT = """
SELECT number, id, metadata::text, created_time FROM stored_values
WHERE account = $1 AND project_id = $2 ORDER BY number DESC LIMIT $3
"""
_AFTER = """
SELECT number, id, metadata::text, created_time FROM stored_values
WHERE account = $1 AND project_id = $2 AND number > $3 ORDER BY number LIMIT $4
"""
_DELETE = "SELECT delete_value($1, $2, $3)"
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
    SHARED = "shared"
    OWN = "own"
    QUOTA = "quota"

    @property
    def is_stored(self) -> bool:
        """Whether the value is there now."""
        return self in (StoreOutcome.CREATED, StoreOutcome.REPLACED)


_OUTCOMES = {outcome.value: outcome for outcome in StoreOutcome}


class Quota(NamedTuple):
    """The most that one project may store: values, and bytes of their compact JSON in all.

    Half of both is for callers without a token, and a tenth of that half for each of them.
    """

    values: int
    total_bytes: int


class NewValue(NamedTuple):
    """A value to store; `metadata` is compact JSON."""

    project_id: str
    id: str
    metadata: bytes
    time_ms: int


class StoredValueRow(NamedTuple):
    """One storing. `value` is the JSON of the `StoredValue`."""

    number: int
    value: bytes


class _Storing:
    """One value of a group: its arguments of `store_values` as texts. Equal to no other."""

    __slots__ = ("arguments",)

    def __init__(self, *arguments: str) -> None:
        self.arguments = arguments


class StoredValues(Repository):
    """The repository. Every method raises `Unavailable` while the database is unavailable."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._found = database.batcher(self._find, _GROUP)
        self._stored = database.batcher(self._store, _GROUP, writes=True)

    async def store(
        self,
        account: str,
        value: NewValue,
        quota: Quota,
        *,
        anonymous_caller: str | None,
        alone: bool,
    ) -> StoreOutcome:
        """Store a value within the project's quota, wholly or not at all; returns what became of it.

        Args:
            anonymous_caller: tells callers without a token apart, who replace nothing; None with a token.
            alone: in a transaction of its own, which can be part of a `Database.unit`, and not together with
                other callers' values.
        """
        if alone:
            return await self._store_alone(account, value, quota, anonymous_caller or "")
        storing = _Storing(
            account,
            value.project_id,
            value.id,
            value.metadata.decode(),
            str(len(value.metadata)),
            format_ms(value.time_ms),
            anonymous_caller or "",
            str(quota.values),
            str(quota.total_bytes),
        )
        outcome = await self._stored.ask(storing)
        assert outcome is not None, "every storing of a group has its outcome"
        return outcome

    async def _store_alone(
        self, account: str, value: NewValue, quota: Quota, anonymous_caller: str
    ) -> StoreOutcome:
        text, time = value.metadata.decode(), to_datetime(value.time_ms)
        async with self._database.transaction() as connection:
            return StoreOutcome(
                await connection.fetchval(
                    _STORE, account, value.project_id, value.id, text, len(value.metadata), time,
                    anonymous_caller, *quota,
                )
            )  # fmt: skip

    async def find(self, account: str, project_id: str, value_id: str) -> bytes | None:
        """The JSON of the stored value, or None."""
        return await self._found.ask((account, project_id, value_id))

    async def _find(
        self, connection: asyncpg.Connection, keys: Sequence[tuple[str, str, str]]
    ) -> dict[tuple[str, str, str], bytes]:
        found = {}
        for place, metadata, created_time in await connection.fetch(_FIND, *_join_columns(keys)):
            key = keys[place - 1]
            found[key] = stored_value_json(key[2], metadata.encode(), format_time(created_time))
        return found

    async def _store(
        self, connection: asyncpg.Connection, storings: Sequence["_Storing"]
    ) -> dict["_Storing", StoreOutcome]:
        """Store values in one transaction, which is one statement; each project's in their order."""
        columns = _join_columns([storing.arguments for storing in storings])
        outcomes = await connection.fetchval(_STORE_ALL, *columns)
        return {storing: _OUTCOMES[outcome] for storing, outcome in zip(storings, outcomes, strict=True)}

    async def delete(self, account: str, project_id: str, value_id: str) -> None:
        """Delete a value. Raises NotFound."""
        async with self._database.transaction() as connection:
            if not await connection.fetchval(_DELETE, account, project_id, value_id):
                raise NotFound(f"the project {project_id} has no value {value_id}")

    async def has_project(self, account: str, project_id: str) -> bool:
        """Whether there is such a project."""
        return bool(await self._database.fetchval(_HAS_PROJECT, account, project_id))

    async def recent(self, account: str, project_id: str, limit: int) -> list[StoredValueRow]:
        """The newest `limit` storings that are kept, oldest first."""
        rows = await self._database.fetch(_RECENT, account, project_id, limit)
        return [_row(row) for row in reversed(rows)]

    async def after(self, account: str, project_id: str, number: int, limit: int) -> list[StoredValueRow]:
        """At most `limit` storings after `number`, oldest first."""
        rows = await self._database.fetch(_AFTER, account, project_id, number, limit)
        return [_row(row) for row in rows]

    async def purge(self, before_ms: int, limit: int) -> int:
        """Drop at most `limit` superseded values stored before `before_ms`; returns how many."""
        return await self._database.execute(_PURGE, to_datetime(before_ms), limit)


def _row(row: asyncpg.Record) -> StoredValueRow:
    return StoredValueRow(row[0], stored_value_json(row[1], row[2].encode(), format_time(row[3])))


def _join_columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Each column of the rows as one text; see `_COLUMNS`."""
    columns = [_SEPARATOR.join(column) for column in zip(*rows, strict=True)]
    most = len(rows) - 1
    assert all(column.count(_SEPARATOR) == most for column in columns), (
        "names and JSON have no such character"
    )
    return columns
