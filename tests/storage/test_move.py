"""`broker move`: a whole database goes to an empty one as it is."""

import io
import sys
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from broker.cli.main import run
from broker.errors import Conflict
from broker.setup_error import SetupError
from broker.storage.conductor_lease import ConductorLease
from broker.storage.fence import connection_name
from broker.storage.migrations import migrate
from broker.storage.move import move
from tests.storage.full_account import fill_account

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

_LEFT = {"schema_migrations", "gateways", "conductor_lease"}
_MADE_BY_MIGRATIONS = {"sequences", "placement"}
_TABLES = "SELECT tablename::text FROM pg_tables WHERE schemaname = 'public' ORDER BY 1"
_SEQUENCES = "SELECT sequencename::text, last_value FROM pg_sequences WHERE schemaname = 'public' ORDER BY 1"


@pytest.fixture
async def source(own_migrated_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection to a database with rows in every table."""
    connection = await asyncpg.connect(own_migrated_dsn)
    try:
        for account in ("arena", "other"):
            await fill_account(connection, account)
        await connection.execute("""
            INSERT INTO owner_slots VALUES ('owner-0', 7);
            INSERT INTO signing_keys VALUES ('kid', 'public', 'private', now(), NULL);
            INSERT INTO statistics_marks VALUES ('hour', now());
            INSERT INTO statistics_writers VALUES ('w', 1, now());
            INSERT INTO image_purge_head (number) VALUES (5);
            INSERT INTO restores (number) VALUES (1);
            INSERT INTO maintenance (message, retry_after_s) VALUES ('back at noon', 60);
            UPDATE placement SET version = 3, owners = 2;
            INSERT INTO answer_doors VALUES ('counter-0', 'door', 1, '', now());
            UPDATE program_heads SET history = nextval('histories') WHERE epoch = 'arena-final';
        """)
        yield connection
    finally:
        await connection.close()


async def contents(connection: asyncpg.Connection) -> dict[str, Any]:
    found: dict[str, Any] = {"sequences": [tuple(row) for row in await connection.fetch(_SEQUENCES)]}
    for (table,) in await connection.fetch(_TABLES):
        if table not in _LEFT:
            rows = await connection.fetch(f"SELECT to_jsonb(t)::text FROM {table} t ORDER BY 1")
            found[table] = [row[0] for row in rows]
    return found


async def test_everything_is_there_as_it_was(
    source: asyncpg.Connection, own_migrated_dsn: str, postgres_dsn: str
) -> None:
    before = await contents(source)
    assert [name for name, rows in before.items() if not rows] == []
    counts = await move(own_migrated_dsn, postgres_dsn)
    target = await asyncpg.connect(postgres_dsn)
    try:
        found = await contents(target)
    finally:
        await target.close()
    assert found == before
    assert await contents(source) == before
    assert counts == {name: len(rows) for name, rows in before.items() if name != "sequences"}
    with pytest.raises(Conflict, match="the new database has accounts"):
        await move(own_migrated_dsn, postgres_dsn)


async def test_product_that_runs_is_not_moved(
    source: asyncpg.Connection, own_migrated_dsn: str, postgres_dsn: str
) -> None:
    lease = await ConductorLease.open(own_migrated_dsn, "somebody")
    try:
        assert await lease.take()
        with pytest.raises(Conflict, match="runs on the database that is moved; stop"):
            await move(own_migrated_dsn, postgres_dsn)
    finally:
        await lease.close()
    settings = {"application_name": connection_name("owner-0")}
    left = await asyncpg.connect(own_migrated_dsn, server_settings=settings)
    try:
        with pytest.raises(Conflict, match="broker owner-0 is connected"):
            await move(own_migrated_dsn, postgres_dsn)
    finally:
        await left.close()


async def test_move_that_fails_leaves_the_new_database_empty(
    source: asyncpg.Connection, own_migrated_dsn: str, postgres_dsn: str
) -> None:
    await migrate(postgres_dsn)
    target = await asyncpg.connect(postgres_dsn)
    try:
        await target.execute("ALTER TABLE vote_networks ADD CHECK (votes < 0)")  # one of the last
        with pytest.raises(asyncpg.CheckViolationError):
            await move(own_migrated_dsn, postgres_dsn)
        found = {name for name, rows in (await contents(target)).items() if rows}
        assert found - _MADE_BY_MIGRATIONS == set(), "nothing was kept"
    finally:
        await target.close()


AWAY = "postgresql://broker:hidden@127.0.0.1:1/broker"


async def test_database_that_cannot_be_reached_is_named(own_migrated_dsn: str, postgres_dsn: str) -> None:
    for source, target, name in (
        (own_migrated_dsn, AWAY, "new database cannot be reached: "),
        (AWAY, postgres_dsn, "database that is moved cannot be reached: "),
        (own_migrated_dsn, "postgresql://broker:hidden@h:x/", "new database: must look like postgresql://"),
    ):
        with pytest.raises(SetupError, match=f"^the {name}") as told:
            await move(source, target)
        assert "hidden" not in str(told.value)


def test_url_of_the_new_database_is_kept_off_the_command_line(
    own_migrated_dsn: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["move", "--database-url", own_migrated_dsn]
    assert run(words) == 2
    monkeypatch.setenv("BROKER_MOVE_TO", AWAY)
    assert run(words) == 1
    monkeypatch.delenv("BROKER_MOVE_TO")
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{AWAY}\n"))
    assert run([*words, "--to", "-"]) == 1
    assert run([*words, "--to", "-"]) == 2  # nothing is left of standard input
    assert run(["move", "--database-url", AWAY, "--to", own_migrated_dsn]) == 1
    _, new, again, _, old = capsys.readouterr().err.splitlines()
    assert new == again
    assert new.startswith("error: the new database cannot be reached: ")
    assert old.startswith("error: the database that is moved cannot be reached: ")
    assert "hidden" not in new + old
