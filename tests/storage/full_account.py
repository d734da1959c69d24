"""An account with rows in every table that has rows of accounts."""

from typing import Any

import asyncpg

from broker.clock import SystemClock
from broker.ids import IdSource

_ids = IdSource(SystemClock())

_ROWS = """
INSERT INTO accounts (name, origins, created_time) VALUES ($1, '{https://a.example}', now());
INSERT INTO users
    (id, account, username, password_hash, role, email, tokens_valid_from, created_time, updated_time)
    VALUES ($1 || '-ada', $1, 'ada', 'hash', 'admin', 'ada@example.org', now(), now(), now());
INSERT INTO api_tokens VALUES ($1 || '-token', $1, $1 || '-ada', 'board', sha256($1::bytea), NULL, now());
INSERT INTO identity_providers
    VALUES ($1, 'https://i', '{broker}', 'https://i/keys', 'groups', '{"crew": "user"}');
INSERT INTO user_identities VALUES ($1, 'https://i', 'subject', $1 || '-ada');
INSERT INTO projects (account, id, name, metadata, last_version, created_time, updated_time)
    VALUES ($1, 'football', 'Football', '{"a": "tab\\tand \\\\n"}', 1, now(), now());
INSERT INTO storage_usage (account, project_id, value_count, octets) VALUES ($1, 'football', 1, 2);
INSERT INTO anonymous_storage_usage VALUES ($1, 'football', 'caller', 1, 2);
INSERT INTO stored_values (account, project_id, id, metadata, octets, created_time, superseded)
    VALUES ($1, 'football', 'v', '{}', 2, now(), true), ($1, 'football', 'v', '{}', 2, now(), false);
INSERT INTO revisions (account, project_id, id, version, status, content, created_by, updated_by,
    created_time, updated_time) VALUES ($1, 'football', 'r', '1', 'draft', '{}', 'ada', 'ada', now(), now());
INSERT INTO programs (account, id, name, project_id, access, metadata, created_time, updated_time)
    VALUES ($1, 'final', 'The final', 'football', 'public', '{}', now(), now()),
           ($1, 'empty', 'Nothing', NULL, 'private', NULL, now(), now());
INSERT INTO program_heads (program_uid, epoch, epoch_reason, seq, last_change)
    SELECT uid, $1 || '-' || id, 'created', CASE id WHEN 'final' THEN 3 ELSE 0 END, now()
    FROM programs WHERE account = $1;
INSERT INTO events (history, seq, id, created_time, timestamp, timecode, event, metadata, imported, deleted)
    SELECT history, n, gen_random_uuid(), now(), 1, 2, 'Score#update', '{"text": "a\\nb\\\\"}', n = 2, false
    FROM program_heads, generate_series(1, 2) AS n WHERE epoch = $1 || '-final';
INSERT INTO event_changes (history, seq, event_id, event_seq, kind, before, after, time)
    SELECT history, 3, id, 1, 'updated', '{"epoch": "x"}', '{"epoch": "x"}', now() FROM events
    JOIN program_heads USING (history) WHERE epoch = $1 || '-final' AND events.seq = 1;
INSERT INTO answer_keys SELECT uid, substring(sha256($1::bytea) FOR 16) FROM programs WHERE account = $1;
INSERT INTO answer_polls (program_uid, account, measure, context, shards)
    SELECT uid, account, 'winner', id, 2 FROM programs WHERE account = $1;
INSERT INTO answer_records SELECT uid, 1, 1, 0, '\\x0001' FROM answer_polls WHERE account = $1;
INSERT INTO answer_tallies SELECT uid, 1, '{3,4}', 1, 7, 7, now() FROM answer_polls WHERE account = $1;
INSERT INTO vote_minutes SELECT uid, 1, 2, 3 FROM answer_polls WHERE account = $1;
INSERT INTO vote_networks SELECT uid, 1, 2 FROM answer_polls WHERE account = $1;
INSERT INTO visitor_rules VALUES ($1, '{secret}', 'made', 'signed');
INSERT INTO image_rules VALUES ($1, '{a.example}', '{}', '{key}');
INSERT INTO analytics_platforms VALUES ($1, 'https://m', 'token', 'reader', 'token');
INSERT INTO analytics_sites VALUES ('https://m', $1, $1);
INSERT INTO idempotency_keys VALUES ($1, 'ada', 'key', 'hash', 201, '{}', now());
INSERT INTO statistics SELECT $1, 'day', date_trunc('day', now()), '', '', 1, 2, 3, 4, 5, 6;
INSERT INTO audit (account, time, actor_name, action, target_type, target_id, details)
    VALUES ($1, now(), 'ada', 'program.created', 'program', 'final', '{}');
INSERT INTO program_changes (account, change, program, time) VALUES ($1, 'created', '{}', now());
INSERT INTO schedule_marks VALUES ($1, now());
INSERT INTO analytics_setups VALUES ($1, 'football', 'x', now());
INSERT INTO image_purges VALUES ($1, '', 1, now());
INSERT INTO staged_imports (import_id, row_count, created_time, account, program_id)
    VALUES ($1 || '-import', 1, now(), $1, 'final');
INSERT INTO revocations (account, subject, valid_from, created_time) VALUES ($1, $1 || '-bob', now(), now());
INSERT INTO login_failures VALUES ($1, 'x', now());
INSERT INTO producers_seen VALUES ($1, $1 || '-ada', now());
INSERT INTO rate_buckets VALUES ('image/' || $1 || '/127.0.0.1', 1);
"""

RENUMBERED = {"uid", "program_uid", "history", "poll", "number"}
"""Columns that have other values in another database."""
BEGUN = {"epoch", "epoch_reason", "epoch_base", "last_change", "tokens_valid_from"}
"""Columns that a restore begins anew."""
_NAMED = {
    "program_uid": "(SELECT id FROM programs p WHERE p.uid = t.program_uid)",
    "history": "(SELECT p.id FROM programs p JOIN program_heads h ON h.program_uid = p.uid"
    " WHERE h.history = t.history)",
    "poll": "(SELECT measure || '/' || context FROM answer_polls q WHERE q.uid = t.poll)",
}


async def fill_account(connection: asyncpg.Connection, account: str) -> None:
    """Make it, with a row or two in each table."""
    quoted = await connection.fetchval("SELECT quote_literal($1::text)", account)
    await connection.execute(_ROWS.replace("$1", f"{quoted}::text"))


async def rows_of(connection: asyncpg.Connection, table: str, condition: str, account: str) -> list[Any]:
    """The rows of an account as JSON, in a fixed order, programs and polls by their names."""
    columns = [
        row[0]
        for row in await connection.fetch(
            "SELECT column_name::text FROM information_schema.columns"
            " WHERE table_schema = 'public' AND table_name = $1",
            table,
        )
    ]
    hidden = RENUMBERED | BEGUN | ({"id"} if table == "audit" else set())
    named = [f"'{name}', {_NAMED[name]}" for name in columns if name in _NAMED]
    statement = (
        f"SELECT ((to_jsonb(t) - '{{{','.join(sorted(hidden))}}}'::text[])"
        f" || jsonb_build_object({', '.join(named)}))::text FROM {table} t WHERE {condition} ORDER BY 1"
    )
    return [row[0] for row in await connection.fetch(statement, account)]
