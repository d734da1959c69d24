"""Puts the rows of one account from temporary tables in their places; see `broker.storage.restore`."""

import secrets
import string
from collections.abc import Mapping, Sequence

import asyncpg

from broker.domain.audit import Actor, AuditEntry
from broker.storage.account_tables import ACCOUNT_TABLES
from broker.storage.audit import append_audit
from broker.storage.backup_file import BackupError
from broker.storage.polls import NEW_NUMBER
from broker.storage.program_changes import append_change
from broker.storage.program_rows import PROGRAM_COLUMNS, program_of
from broker.storage.statistics_upkeep import condense_account

_EPOCH_LETTERS = string.digits + string.ascii_letters
# Programs and polls have numbers of their own in each database, and histories too.
_PROGRAMS = """
CREATE TEMP TABLE restored_program ON COMMIT DROP AS
SELECT r.uid AS former, NULL::bigint AS uid, NULL::boolean AS is_new, h.history AS former_history,
    nextval('histories') AS history, NULL::text AS epoch
FROM restored_programs r JOIN restored_program_heads h ON h.program_uid = r.uid
"""
_EPOCHS = """
UPDATE restored_program SET epoch = e.epoch FROM unnest($1::bigint[], $2::text[]) AS e (former, epoch)
WHERE restored_program.former = e.former
"""
# First, as those do who store something within the account's quotas.
_HOLD_ACCOUNT = "SELECT FROM accounts WHERE name = $1 FOR NO KEY UPDATE"
_HOLD_PROGRAMS = """
SELECT FROM program_heads h JOIN programs p ON p.uid = h.program_uid WHERE p.account = $1
ORDER BY p.uid FOR UPDATE OF h
"""
_HOLD_STORAGE = """
SELECT FROM storage_usage WHERE account = $1 ORDER BY account COLLATE "C", project_id COLLATE "C" FOR UPDATE
"""
_HOLD_POLLS = "SELECT FROM answer_polls WHERE account = $1 ORDER BY uid FOR UPDATE"
_FIND_UIDS = """
UPDATE restored_program m
SET uid = coalesce(p.uid, nextval(pg_get_serial_sequence('programs', 'uid'))), is_new = p.uid IS NULL
FROM restored_programs r LEFT JOIN programs p ON p.account = r.account AND p.id = r.id
WHERE r.uid = m.former
"""
_GONE = f"""
SELECT uid, {PROGRAM_COLUMNS} FROM programs
WHERE account = $1 AND id NOT IN (SELECT id FROM restored_programs)
"""  # noqa: S608  # a constant
_PRESENT = f"""
SELECT {PROGRAM_COLUMNS}, is_new FROM programs JOIN restored_program USING (uid) ORDER BY uid
"""  # noqa: S608  # a constant
_MOVE_HEADS = """
UPDATE program_heads h SET history = m.history, epoch = m.epoch, epoch_reason = 'restored',
    epoch_base = r.seq, epoch_deleted = 0, seq = r.seq, last_change = greatest(r.last_change, now())
FROM restored_program m JOIN restored_program_heads r ON r.program_uid = m.former
WHERE h.program_uid = m.uid AND NOT m.is_new
"""
# Whoever was there or comes back logs in again; processes that hold sessions are told.
_REVOKE = """
INSERT INTO revocations (account, subject, valid_from, created_time)
SELECT $1, id, date_trunc('milliseconds', now()), now()
FROM (SELECT id FROM users WHERE account = $1 UNION SELECT id FROM restored_users) AS subjects
"""
_REVOKE_API_TOKENS = """
INSERT INTO revocations (account, subject, valid_from, api_token_id, created_time)
SELECT $1, user_id, 'epoch', id, now() FROM api_tokens
WHERE account = $1 AND id NOT IN (SELECT id FROM restored_api_tokens)
"""
_STAY_REVOKED = """
DELETE FROM restored_api_tokens WHERE id NOT IN (SELECT id FROM api_tokens WHERE account = $1)
"""
# A poll that exists keeps its number, by which doors know it. Its rows of records get higher numbers than
# those that they replace: so a counter misses the one that it knows to be the newest, and reads them again.
# Where a shard has no rows now, a counter has nothing to miss, and the poll gets another number.
_POLLS = f"""
CREATE TEMP TABLE restored_poll ON COMMIT DROP AS
SELECT r.uid AS former, q.uid IS NULL AS is_new,
    coalesce(q.uid, {NEW_NUMBER}) AS uid,
    coalesce((SELECT max(number) FROM answer_records a WHERE a.poll = q.uid), 0) AS above
FROM restored_answer_polls r JOIN restored_program m ON m.former = r.program_uid
LEFT JOIN answer_polls q ON q.program_uid = m.uid AND q.measure = r.measure AND q.context = r.context
    AND q.shards = r.shards AND NOT EXISTS (
        SELECT FROM restored_answer_records n WHERE n.poll = r.uid AND NOT EXISTS (
            SELECT FROM answer_records a WHERE a.poll = q.uid AND a.shard = n.shard))
"""  # noqa: S608  # a constant
_DELETE_POLLS = """
DELETE FROM answer_polls WHERE account = $1 AND uid NOT IN (SELECT uid FROM restored_poll WHERE NOT is_new)
"""
_DELETE_KEYS = "DELETE FROM answer_keys WHERE program_uid IN (SELECT uid FROM programs WHERE account = $1)"
_COUNTED = ("answer_records", "answer_tallies", "vote_minutes", "vote_networks")
_JOIN_PROGRAM = "JOIN restored_program m ON m.former = r.program_uid"
_JOIN_POLL = "JOIN restored_poll q ON q.former = r.poll"
# An id is that of one published event everywhere; where that one is still there, ours counts as imported.
_IS_IMPORTED = "r.imported OR EXISTS (SELECT FROM events e WHERE e.id = r.id AND NOT e.imported)"
_TABLES = (  # replaced as they are
    "identity_providers",
    "user_identities",
    "visitor_rules",
    "image_rules",
    "analytics_platforms",
    "idempotency_keys",
    "statistics",
)


def staging_table(table: str) -> str:
    """The name of the temporary table with what a backup has of `table`."""
    return f"restored_{table}"


class RestoredAccount:
    """One account whose rows are in the temporary tables. All within the caller's transaction.

    Args:
        columns: of each table.
        is_there: the account exists and is replaced.
    """

    def __init__(
        self,
        connection: asyncpg.Connection,
        account: str,
        columns: Mapping[str, Sequence[str]],
        *,
        is_there: bool,
    ) -> None:
        self._connection = connection
        self._account = account
        self._columns = columns
        self._is_there = is_there

    async def put(self, created: str) -> None:
        """Exchange everything, and drop the temporary tables. `created` is when the backup was made."""
        await self._check()
        await self._put_histories()
        for hold in (_HOLD_ACCOUNT, _HOLD_PROGRAMS, _HOLD_STORAGE, _HOLD_POLLS):
            await self._connection.execute(hold, self._account)
        await self._put_account()
        await self._put_users()
        await self._put_projects()
        await self._put_programs()
        await self._put_polls()
        for table in _TABLES:
            await self._delete(table)
            await self._insert(table)
        # One that two accounts have set up belongs to the first of them.
        await self._delete("analytics_sites")
        await self._insert("analytics_sites", tail="ON CONFLICT DO NOTHING")
        await condense_account(self._connection, self._account)
        if not self._is_there:
            await self._insert("audit", without=("id",), tail="ORDER BY r.id")
        entry = AuditEntry(Actor.operator(), "account.restored", self._account, {"backup": created})
        await append_audit(self._connection, self._account, entry)
        kept = [staging_table(table.name) for table in ACCOUNT_TABLES if table.is_kept]
        await self._connection.execute(f"DROP TABLE {', '.join(kept)}, restored_program, restored_poll")

    async def _check(self) -> None:
        """Raise BackupError when a row is of another account."""
        for table in ACCOUNT_TABLES:
            if not table.is_kept:
                continue
            column = {"accounts": "name"}.get(table.name, "account")
            if column in self._columns[table.name]:
                others = await self._connection.fetchval(
                    f"SELECT count(*) FROM {staging_table(table.name)} WHERE {column} <> $1",  # noqa: S608  # ours
                    self._account,
                )
                if others:
                    raise BackupError(f"the backup was changed: {table.name} has rows of another account")

    async def _put_histories(self) -> None:
        """The long part: nobody sees these histories yet."""
        await self._connection.execute(_PROGRAMS)
        rows = await self._connection.fetch("SELECT former FROM restored_program")
        epochs = ["".join(secrets.choice(_EPOCH_LETTERS) for _ in range(12)) for _ in rows]
        await self._connection.execute(_EPOCHS, [row["former"] for row in rows], epochs)
        joined = "JOIN restored_program m ON m.former_history = r.history"
        await self._insert("events", {"history": "m.history", "imported": _IS_IMPORTED}, joined)
        await self._insert("event_changes", {"history": "m.history"}, joined)

    async def _put_account(self) -> None:
        if not self._is_there:
            await self._insert("accounts")
            return
        listed = [name for name in self._columns["accounts"] if name not in ("name", "created_time")]
        await self._connection.execute(
            f"UPDATE accounts a SET {_assigned(listed)} FROM restored_accounts r WHERE a.name = r.name"  # noqa: S608  # ours
        )

    async def _put_users(self) -> None:
        await self._connection.execute(_REVOKE, self._account)
        await self._connection.execute(_REVOKE_API_TOKENS, self._account)
        if self._is_there:
            await self._connection.execute(_STAY_REVOKED, self._account)
        for table in ("user_identities", "identity_providers", "api_tokens", "users"):
            await self._delete(table)
        await self._insert("users", {"tokens_valid_from": "date_trunc('milliseconds', now())"})
        await self._insert("api_tokens")

    async def _put_projects(self) -> None:
        await self._delete("projects")  # and all that hangs on them
        for table in ("projects", "storage_usage", "anonymous_storage_usage"):
            await self._insert(table)
        # With new numbers, so followers of the channel are told them.
        await self._insert("stored_values", without=("number",), tail="ORDER BY r.number")
        await self._insert("revisions", without=("uid",), tail="ORDER BY r.uid")

    async def _put_programs(self) -> None:
        run, account = self._connection, self._account
        await run.execute(_FIND_UIDS)
        moment = await run.fetchval("SELECT now()")
        for row in await run.fetch(_GONE, account):
            await append_change(run, account, "deleted", program_of(row), moment)
            await run.execute("DELETE FROM programs WHERE uid = $1", row["uid"])
        listed = [name for name in self._columns["programs"] if name not in ("uid", "account", "id")]
        await run.execute(
            f"UPDATE programs p SET {_assigned(listed)} FROM restored_programs r"  # noqa: S608  # ours
            " JOIN restored_program m ON m.former = r.uid WHERE p.uid = m.uid AND NOT m.is_new"
        )
        await run.execute(_MOVE_HEADS)
        joined = "JOIN restored_program m ON m.former = r.uid AND m.is_new"
        await self._insert("programs", {"uid": "m.uid"}, joined)
        head = {
            "program_uid": "m.uid",
            "history": "m.history",
            "epoch": "m.epoch",
            "epoch_reason": "'restored'",
            "epoch_base": "r.seq",
            "epoch_deleted": "0",
            "last_change": "greatest(r.last_change, now())",
        }
        await self._insert("program_heads", head, f"{_JOIN_PROGRAM} AND m.is_new")
        for row in await run.fetch(_PRESENT):
            await append_change(
                run, account, "created" if row["is_new"] else "updated", program_of(row), moment
            )

    async def _put_polls(self) -> None:
        run = self._connection
        await run.execute(_POLLS)
        await run.execute(_DELETE_POLLS, self._account)
        await run.execute(_DELETE_KEYS, self._account)
        await self._insert("answer_keys", {"program_uid": "m.uid"}, _JOIN_PROGRAM)
        joined = "JOIN restored_poll q ON q.former = r.uid"
        names = [name for name in self._columns["answer_polls"] if name not in ("uid", "program_uid")]
        await run.execute(
            f"UPDATE answer_polls p SET {_assigned(names)} FROM restored_answer_polls r {joined}"  # noqa: S608  # ours
            " WHERE p.uid = q.uid AND NOT q.is_new"
        )
        numbers = {"uid": "q.uid", "program_uid": "m.uid"}
        await self._insert("answer_polls", numbers, f"{joined} AND q.is_new {_JOIN_PROGRAM}")
        for table in _COUNTED:
            await run.execute(f"DELETE FROM {table} WHERE poll IN (SELECT uid FROM restored_poll)")  # noqa: S608  # ours
            changed = {"poll": "q.uid", "number": "r.number + q.above"}
            await self._insert(table, changed, _JOIN_POLL)

    async def _delete(self, table: str) -> None:
        await self._connection.execute(f"DELETE FROM {table} WHERE account = $1", self._account)  # noqa: S608  # ours

    async def _insert(
        self,
        table: str,
        changed: Mapping[str, str] | None = None,
        joined: str = "",
        *,
        without: Sequence[str] = (),
        tail: str = "",
    ) -> None:
        """Insert the temporary rows `r`, some columns `changed`, those `without` left to their defaults."""
        names = [name for name in self._columns[table] if name not in without]
        values = [(changed or {}).get(name, f'r."{name}"') for name in names]
        listed = ", ".join(f'"{name}"' for name in names)
        await self._connection.execute(
            f"INSERT INTO {table} ({listed}) OVERRIDING SYSTEM VALUE"  # noqa: S608  # ours
            f" SELECT {', '.join(values)} FROM {staging_table(table)} r {joined} {tail}"
        )


def _assigned(columns: Sequence[str]) -> str:
    return ", ".join(f'"{column}" = r."{column}"' for column in columns)
