"""What an earlier version stored is there after an upgrade, and new code goes on from it.

And each migration is a step that the code before it survives: it expands, or it says why it may contract.
"""

import re
from pathlib import Path

import asyncpg
import pytest

from broker.storage.migrations import DIRECTORY, Migration, load, migrate
from tests.product import open_product

_DATA = Path(__file__).with_name("schema_13.sql")
_STEPPED = 28  # the first migration that runs beside the code before it

_BREAKS = {
    "drops what old code uses": r"\bDROP\s+(TABLE|COLUMN|FUNCTION|VIEW|SEQUENCE|TYPE|TRIGGER)\b",
    "renames what old code uses": r"\bRENAME\b",
    "changes a type that old code writes": r"\bALTER\s+COLUMN\s+\w+\s+(SET\s+DATA\s+)?TYPE\b",
    "refuses rows that old code writes": r"\bSET\s+NOT\s+NULL\b",
    "refuses rows without a value": r"\bADD\s+COLUMN\b(?![^,;]*\bDEFAULT\b)[^,;]*\bNOT\s+NULL\b",
    "drops a default that old code relies on": r"\bDROP\s+DEFAULT\b",
}
_CONTRACT = re.compile(r"^-- Contract: unused since \d+\.\d+\.\d+$", re.MULTILINE)


def faults(sql: str) -> list[str]:
    """How a migration breaks the code before it; none if it says since when that is unused."""
    if _CONTRACT.search(sql):
        return []
    code = re.sub(r"--.*", "", sql)
    found = [fault for fault, pattern in _BREAKS.items() if re.search(pattern, code, re.IGNORECASE)]
    # A constraint may be widened: dropped and added under its name. A new one refuses what old code writes.
    added = re.findall(r"\bADD\s+CONSTRAINT\s+(\w+)", code, re.IGNORECASE)
    dropped = re.findall(r"\bDROP\s+CONSTRAINT\s+(\w+)", code, re.IGNORECASE)
    if not set(added) <= set(dropped):
        found.append("adds a constraint")
    made = re.findall(r"\bCREATE\s+TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?(\w+)", code, re.IGNORECASE)
    unique = re.findall(r"\bCREATE\s+UNIQUE\s+INDEX\s+\w+\s+ON\s+(\w+)", code, re.IGNORECASE)
    return found + ["adds a constraint"] * (not set(unique) <= set(made))


@pytest.mark.parametrize("migration", load(DIRECTORY), ids=lambda migration: migration.name)
def test_migration_expands_or_says_that_it_contracts(migration: Migration) -> None:
    assert migration.version < _STEPPED or faults(migration.sql) == []


@pytest.mark.parametrize(
    ("sql", "count"),
    [
        ("ALTER TABLE a DROP COLUMN b", 1),
        ("drop table a", 1),
        ("ALTER TABLE a RENAME COLUMN b TO c", 1),
        ("ALTER TABLE a ALTER COLUMN b TYPE bigint", 1),
        ("ALTER TABLE a ALTER COLUMN b SET NOT NULL", 1),
        ("ALTER TABLE a ADD COLUMN b text NOT NULL, ADD COLUMN c text NOT NULL DEFAULT ''", 1),
        ("ALTER TABLE a ADD COLUMN c text NOT NULL DEFAULT '', ADD COLUMN d text", 0),
        ("ALTER TABLE a ADD CONSTRAINT b CHECK (c > 0)", 1),
        ("ALTER TABLE a DROP CONSTRAINT b, ADD CONSTRAINT b CHECK (c > 0)", 0),
        ("CREATE UNIQUE INDEX a ON b (c)", 1),
        ("CREATE TABLE b (c text NOT NULL); CREATE UNIQUE INDEX a ON b (c)", 0),
        ("-- why\n-- Contract: unused since 0.2.0\nALTER TABLE a DROP COLUMN b", 0),
        ("-- Contract: unused\nALTER TABLE a DROP COLUMN b", 1),
        ("-- does not DROP TABLE a\nCREATE TABLE a (b text)", 0),
    ],
)
def test_breaking_steps_are_found(sql: str, count: int) -> None:
    assert len(faults(sql)) == count


@pytest.mark.anyio
@pytest.mark.postgres
async def test_data_of_an_earlier_version_are_read_and_continued(postgres_dsn: str, tmp_path: Path) -> None:
    """The files that made the schema then are those of today: one that has run never changes."""
    for migration in load(DIRECTORY):
        if migration.version <= 13:
            (tmp_path / f"{migration.name}.sql").write_text(migration.sql)
    await migrate(postgres_dsn, tmp_path)
    connection = await asyncpg.connect(postgres_dsn)
    try:
        await connection.execute(_DATA.read_text())
    finally:
        await connection.close()
    async with open_product(postgres_dsn) as product, product.door() as door:  # which migrates

        async def read(path: str) -> object:
            answer = await door.get(path)
            assert answer.is_success, answer.text
            return answer.json()

        program = await read("/programs/final")
        assert isinstance(program, dict)
        assert (program["name"], program["projectId"]) == ("The final", "football")
        events = await read("/programs/final/events")
        assert isinstance(events, list)
        assert [(event["seq"], event["event"]) for event in events] == [(1, "Poll#show"), (2, "Score#update")]
        value = await read("/storage/football/line-up")
        assert isinstance(value, dict)
        assert value["metadata"] == {"keeper": 1}
        results = await read("/responses/demo/whoWins/results?programId=final")
        assert isinstance(results, dict)
        assert (results["results"], results["total"]) == ({"0": 3, "1": 4}, 7)
        user = await read("/users/u1")
        assert isinstance(user, dict)
        assert user["username"] == "earlier"
        await read("/projects/football")
        revision = await read("/projects/football/application/revisions/r1")
        assert isinstance(revision, dict)
        assert revision["content"] == {"b": 2}
        await read("/audit")
        (event,) = await product.publish("final", {"event": "Score#update", "metadata": {"home": 3}})
        assert (event["epoch"], event["seq"]) == ("epochOf01000", 4)
