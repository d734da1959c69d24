"""Backups and restores of accounts, on databases alone.

`tests/gateway/test_restore.py` restores into a running product.
"""

import asyncio
import gzip
import hashlib
import io
import os
import random
import threading
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import orjson
import pytest

from broker.cli.main import run
from broker.errors import Conflict, NotFound
from broker.storage.account_tables import ACCOUNT_TABLES, SHARED
from broker.storage.backup import back_up
from broker.storage.backup_file import BackupError, BackupWriter, verify
from broker.storage.restore import restore
from tests.storage.full_account import fill_account, rows_of

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

_LATE = """
INSERT INTO statistics SELECT account, 'minute', time, program_id, project_id, 1, 1, 1, 1, 1, 1
FROM statistics WHERE span = 'day' AND account = 'arena'
"""
KEPT = [table for table in ACCOUNT_TABLES if table.is_kept]


@pytest.fixture(scope="module")
def source(module_dsn: str) -> str:
    """A database with two full accounts."""

    async def fill() -> None:
        connection = await asyncpg.connect(module_dsn)
        try:
            for account in ("arena", "other"):
                await fill_account(connection, account)
        finally:
            await connection.close()

    asyncio.run(fill())
    return module_dsn


@pytest.fixture(scope="module")
def saved(source: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup of both."""
    path = tmp_path_factory.mktemp("backup") / "all.backup"
    with path.open("wb") as raw:
        asyncio.run(back_up(source, raw, "test"))
    return path


@pytest.fixture
async def target(own_migrated_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection to an empty database."""
    connection = await asyncpg.connect(own_migrated_dsn)
    try:
        yield connection
    finally:
        await connection.close()


async def contents(connection: asyncpg.Connection, account: str) -> dict[str, list[Any]]:
    return {
        table.name: await rows_of(connection, table.name, f"{table.rows} AND {table.kept}", account)
        for table in KEPT
    }


async def test_every_table_is_kept_or_said_not_to_be(target: asyncpg.Connection) -> None:
    rows = await target.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    known = [table.name for table in ACCOUNT_TABLES]
    assert sorted([*known, *SHARED]) == sorted(row[0] for row in rows)


async def test_restored_account_is_the_one_that_was_saved(
    source: str, saved: Path, own_migrated_dsn: str, target: asyncpg.Connection
) -> None:
    await fill_account(target, "third")  # so that numbers are not by chance those of the source
    counts = await restore(own_migrated_dsn, saved)
    origin = await asyncpg.connect(source)
    try:
        for account in ("arena", "other"):
            expected, found = await contents(origin, account), await contents(target, account)
            assert [name for name, rows in expected.items() if not rows] == []
            restored = found.pop("audit")
            assert {orjson.loads(row)["action"] for row in restored} == {
                "account.restored",
                "program.created",
            }
            expected.pop("audit")
            assert found == expected
            assert counts[account] == {name: len(rows) for name, rows in expected.items()} | {"audit": 1}
    finally:
        await origin.close()
    heads = await target.fetch(
        "SELECT epoch, epoch_reason, epoch_base, seq FROM program_heads h"
        " JOIN programs p ON p.uid = h.program_uid WHERE account <> 'third'"
    )
    assert {row["epoch_reason"] for row in heads} == {"restored"}
    assert [row for row in heads if row["epoch_base"] != row["seq"] or "-" in row["epoch"]] == []


async def test_replaced_account_is_as_it_was_and_others_are_untouched(
    source: str, saved: Path, own_migrated_dsn: str, target: asyncpg.Connection
) -> None:
    await restore(own_migrated_dsn, saved)
    expected, other = await contents(target, "arena"), await contents(target, "other")
    uids = await target.fetch("SELECT id, uid FROM programs WHERE account = 'arena' ORDER BY id")
    epochs = {row[0] for row in await target.fetch("SELECT epoch FROM program_heads")}
    await target.execute("UPDATE programs SET name = 'changed' WHERE account = 'arena'")
    await target.execute("DELETE FROM projects; DELETE FROM api_tokens WHERE account = 'arena'")
    await target.execute("UPDATE users SET role = 'client'; UPDATE answer_tallies SET visitors = 99")
    await target.execute("UPDATE events SET metadata = '{}'; UPDATE visitor_rules SET secret = 'new'")
    with pytest.raises(Conflict, match="arena exists"):
        await restore(own_migrated_dsn, saved, ["arena"])
    await restore(own_migrated_dsn, saved, ["arena"], replace=True)
    found = await contents(target, "arena")
    expected["api_tokens"] = []  # revoked since: stays so
    for rows in (expected, found):
        rows.pop("audit")
    # The events that they replace have the same ids until they are deleted.
    expected["events"] = [row.replace('"imported": false', '"imported": true') for row in expected["events"]]
    assert found == expected
    assert await target.fetch("SELECT id, uid FROM programs WHERE account = 'arena' ORDER BY id") == uids
    now = {row[0] for row in await target.fetch("SELECT epoch FROM program_heads")}
    assert len(now - epochs) == len(uids)
    assert (await contents(target, "other"))["projects"] != other["projects"]  # what we did, not restored


def damaged(saved: Path, path: Path) -> Iterator[None]:
    """Write the file to `path` cut at many places, then with a bit changed at many places."""
    whole = saved.read_bytes()
    chance = random.Random(7)
    for place in (0, 1, len(whole) - 1, *(chance.randrange(len(whole)) for _ in range(30))):
        path.write_bytes(whole[:place])
        yield
    # The first ten bytes are gzip's own; some of them say nothing.
    for place in (len(whole) - 1, *(chance.randrange(10, len(whole)) for _ in range(30))):
        changed = whole[:place] + bytes([whole[place] ^ 1 << chance.randrange(8)]) + whole[place + 1 :]
        if not unpack_alike(whole, changed):  # some bits only fill a byte (RFC 1951, 3.2.3)
            path.write_bytes(changed)
            yield


def unpack_alike(whole: bytes, changed: bytes) -> bool:
    """Whether a changed file has the content of the whole one."""
    try:
        return gzip.decompress(changed) == gzip.decompress(whole)
    except (OSError, EOFError, zlib.error):
        return False


async def test_damaged_file_changes_nothing(
    saved: Path, tmp_path: Path, own_migrated_dsn: str, target: asyncpg.Connection
) -> None:
    path = tmp_path / "damaged.backup"
    for _ in damaged(saved, path):
        with pytest.raises(BackupError, match=str(path)):
            await restore(own_migrated_dsn, path)
    assert await target.fetchval("SELECT count(*) FROM accounts") == 0


def alter(saved: Path, path: Path, old: bytes, new: bytes, *, is_sealed: bool) -> None:
    """Write the file to `path` with a text replaced; sealed, with the digest of the new content."""
    text = gzip.decompress(saved.read_bytes())
    assert old in text
    content, end = text.replace(old, new, 1)[:-1].rsplit(b"\n", 1)
    if is_sealed:
        digest = hashlib.sha256(content + b"\n").hexdigest()
        end = orjson.dumps(orjson.loads(end) | {"sha256": digest})
    path.write_bytes(gzip.compress(content + b"\n" + end + b"\n"))


@pytest.mark.parametrize(
    ("old", "new", "is_sealed", "told"),
    [
        (b"The final", b"the final", False, "digest is another"),
        (b'"version":1', b'"version":2', True, "version 2"),
        (b'"format":"broker backup"', b'"format":"other"', True, "is no backup"),
        (b'"schema":', b'"schema":9', True, "is of schema 9"),
        (b'"table":"events"', b'"table":"pg_user"', True, "no place for a table pg_user"),
        (b'"columns":["name"', b'"columns":["nome"', True, "accounts has no column nome"),
        (b'"columns":["name"', b'"columns":[null', True, "columns is missing or wrong"),
        (b"arena-ada\tarena\t", b"arena-ada\tother\t", True, "users has rows of another account"),
        (b'{"rows":', b'{"rows":7', True, "accounts has 1 rows"),
        (b'{"rows":', b'{"rews":', True, "rows is missing"),
        (b"arena-ada\tarena\t", b"arena-ada\tarena\n", True, "users has a row that does not fit"),
        (b"arena-ada\tarena\t", b"arena\\x00\tarena\t", True, "users has a row that does not fit"),
    ],
)
async def test_altered_content_is_refused_and_named(
    old: bytes, new: bytes, is_sealed: bool, told: str, saved: Path, tmp_path: Path, own_migrated_dsn: str
) -> None:
    """Also with a digest that agrees: it is no signature."""
    path = tmp_path / "altered.backup"
    alter(saved, path, old, new, is_sealed=is_sealed)
    with pytest.raises(BackupError, match=told):
        await restore(own_migrated_dsn, path)


HEADER = (
    b'{"format":"broker backup","version":1,"schema":30,"product":"x","created":"x","accounts":["arena"]}\n'
)
SECTION = b'{"account":"arena","table":"events","columns":["seq"]}\n'


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (HEADER + SECTION + b"9" * 5_000 + b"\n", "a block has no length"),
        (HEADER + SECTION + b"9" * 15 + b"\n", "longer than 67108864 bytes"),
        (HEADER + SECTION + b"67108864\n", "it ends early"),
        (HEADER + b"[" * 900_000 + b"\n", "is no backup"),
        (HEADER + b" " * (1 << 21), "it ends early"),
    ],
    ids=["length of 5,000 digits", "long block", "block that is not there", "nesting", "long line"],
)
def test_lengths_that_cannot_be_are_refused(content: bytes, told: str, tmp_path: Path) -> None:
    path = tmp_path / "lengths.backup"
    path.write_bytes(gzip.compress(content))
    with path.open("rb") as raw, pytest.raises(BackupError, match=told):
        verify(path, raw)


def peak_bytes(path: Path) -> int:
    """The most memory that reading a file takes, until it is refused."""
    tracemalloc.start()
    try:
        with path.open("rb") as raw, pytest.raises(BackupError, match="it ends early"):
            verify(path, raw)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "content",
    [
        HEADER + SECTION + (b"%d\n" % (48 << 20)) + bytes(48 << 20),
        HEADER + 100_000 * (SECTION + b'0\n{"rows":0}\n'),
    ],
    ids=["one block", "sections"],
)
def test_small_file_that_unpacks_to_much_takes_little_memory(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bomb.backup"
    path.write_bytes(gzip.compress(content, 9))
    assert path.stat().st_size < len(content) / 100
    assert peak_bytes(path) < 6 << 20


async def test_restore_that_fails_at_its_end_has_done_nothing(
    saved: Path, own_migrated_dsn: str, target: asyncpg.Connection
) -> None:
    """The second account cannot be put: of the first nothing is there either."""
    await target.execute("ALTER TABLE accounts ADD CHECK (name <> 'other')")
    with pytest.raises(asyncpg.CheckViolationError):
        await restore(own_migrated_dsn, saved)
    assert await target.fetchval("SELECT count(*) FROM accounts") == 0
    assert await target.fetchval("SELECT count(*) FROM events") == 0


async def test_account_that_is_not_there_is_named(source: str, saved: Path) -> None:
    with pytest.raises(NotFound, match="nobody"):
        await back_up(source, io.BytesIO(), "test", ["nobody"])
    with pytest.raises(NotFound, match="nobody"):
        await restore(source, saved, ["nobody"])


async def test_backup_is_of_one_moment(source: str) -> None:
    """What is committed while the backup is under way is in no part of it."""
    added: list[int] = []

    async def add() -> None:
        connection = await asyncpg.connect(source)
        added.append(int((await connection.execute(_LATE)).split()[-1]))
        await connection.close()

    def progress(_bytes: int) -> None:
        if not added:  # the first rows of the first table have been written
            thread = threading.Thread(target=lambda: asyncio.run(add()))
            thread.start()
            thread.join()

    first, _ = await back_up(source, io.BytesIO(), "test", ["arena"], progress)
    second, _ = await back_up(source, io.BytesIO(), "test", ["arena"])
    assert added == [1]
    assert second["arena"]["statistics"] == first["arena"]["statistics"] + 1


def test_commands_write_and_read(
    source: str, own_migrated_dsn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "arena.backup"
    assert run(["backup", str(path), "--account", "arena", "--json", "--database-url", source]) == 0
    told = orjson.loads(capsys.readouterr().out)
    assert told["accounts"]["arena"]["events"] == 2
    assert told["bytes"] == path.stat().st_size
    assert path.stat().st_mode & 0o777 == 0o600
    assert run(["restore", str(path), "--database-url", own_migrated_dsn]) == 0
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("arena  2 programs, 2 events, 2 polls, 1 users; ")
    assert last == f"restored 1 account from {path}, {path.stat().st_size:,} bytes"
    assert run(["restore", str(path), "--database-url", own_migrated_dsn]) == 1
    assert "--replace" in capsys.readouterr().err
    path.write_bytes(path.read_bytes()[:-20])
    assert run(["restore", str(path), "--replace", "--database-url", own_migrated_dsn]) == 1
    error = capsys.readouterr().err
    assert f"error: {path} is not complete" in error
    assert error.count("\n") == 1


def test_backup_that_fails_leaves_no_file(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "none.backup"
    assert run(["backup", str(path), "--account", "nobody", "--database-url", source]) == 1
    assert "nobody" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []  # noqa: PTH208


def test_backup_goes_through_a_fifo(
    source: str, tmp_path: Path, own_migrated_dsn: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fifo, path = tmp_path / "fifo", tmp_path / "read.backup"
    os.mkfifo(fifo)
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(fifo.read_bytes)
        assert run(["backup", str(fifo), "--json", "--database-url", source]) == 0
        path.write_bytes(reading.result())
    assert fifo.is_fifo()
    assert orjson.loads(capsys.readouterr().out)["bytes"] == path.stat().st_size
    assert run(["restore", str(path), "--database-url", own_migrated_dsn]) == 0


def test_backup_on_standard_output_is_nothing_but_the_backup(
    source: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["backup", "-", "--database-url", source]) == 0
    told = capfdbinary.readouterr()
    assert verify(Path("-"), io.BytesIO(told.out)).accounts == ["arena", "other"]
    *accounts, last = told.err.decode().splitlines()
    assert [line.split()[0] for line in accounts] == ["arena", "other"]
    assert last == f"backup of 2 accounts in -, {len(told.out):,} bytes"
    assert os.listdir(tmp_path) == []  # noqa: PTH208


def test_backup_of_no_account_fails(
    own_migrated_dsn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["backup", str(tmp_path / "a"), "--database-url", own_migrated_dsn]) == 1
    assert "error: the database has no account" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []  # noqa: PTH208


async def test_backup_without_accounts_is_not_restored(
    saved: Path, tmp_path: Path, own_migrated_dsn: str
) -> None:
    path = tmp_path / "empty.backup"
    with saved.open("rb") as raw:
        header = verify(saved, raw)
    with path.open("wb") as raw:
        writer = BackupWriter(raw)
        writer.begin(replace(header, accounts=[]))
        writer.close()
    with pytest.raises(NotFound, match=f"{path} has no account"):
        await restore(own_migrated_dsn, path)
