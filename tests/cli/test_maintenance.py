"""`broker maintenance` on a real database."""

import asyncio
from typing import Any

import orjson
import pytest

from broker.cli.main import run
from broker.storage.audit import Audit, AuditQuery
from broker.storage.database import Database

pytestmark = pytest.mark.postgres


@pytest.fixture
def database(migrated_dsn: str) -> list[str]:
    return ["--database-url", migrated_dsn]


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    capsys.readouterr()
    assert run(["maintenance", *words, "--json"]) == 0
    return orjson.loads(capsys.readouterr().out)["maintenance"]


def test_it_is_switched_on_changed_and_off(database: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "status", *database) is None
    first = shown(capsys, "on", *database)
    assert (first["retryAfter"], "maintenance" in first["message"]) == (30, True)
    told = shown(capsys, "on", "--message", "back at ten", "--retry-after", "90", *database)
    assert told == {"message": "back at ten", "retryAfter": 90, "since": first["since"]}
    assert shown(capsys, "on", *database) == told
    told = shown(capsys, "on", "--retry-after", "60", *database)
    assert told == {"message": "back at ten", "retryAfter": 60, "since": first["since"]}
    assert shown(capsys, "on", "--message", "at nine", *database) == {**told, "message": "at nine"}
    assert shown(capsys, "status", *database) == {**told, "message": "at nine"}
    for _ in range(2):
        assert shown(capsys, "off", *database) is None
    assert shown(capsys, "status", *database) is None


def test_people_read_since_when_and_what_is_told(
    database: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["maintenance", "on", "--message", "back at ten", *database]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("maintenance is on since ")
    assert second == "  back at ten"
    assert run(["maintenance", "off", *database]) == 0
    assert capsys.readouterr().out == "maintenance is off\n"


@pytest.mark.parametrize(
    "wrong",
    [
        ["--message", ""],
        ["--message", "two\nlines"],
        ["--message", "x" * 501],
        ["--retry-after", "0"],
        ["--retry-after", "86401"],
    ],
)
def test_nonsense_is_one_line_and_changes_nothing(
    database: list[str], capsys: pytest.CaptureFixture[str], wrong: list[str]
) -> None:
    assert run(["maintenance", "on", *wrong, *database]) != 0
    assert capsys.readouterr().err.count("\n") == 1
    assert shown(capsys, "status", *database) is None


def test_the_audit_log_of_every_account_tells_it(
    database: list[str], migrated_dsn: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("arena", "stadium"):
        assert run(["account", "add", name, *database]) == 0
    shown(capsys, "on", "--message", "back at ten", *database)
    for _ in range(2):
        shown(capsys, "off", *database)

    async def entries(account: str) -> list[tuple[str, str, Any]]:
        opened = await Database.open(migrated_dsn, size=1, timeout_s=5)
        try:
            query = AuditQuery(limit=10, skip=0, descending=False, target_id="installation")
            rows, _ = await Audit(opened).filter(account, query)
        finally:
            await opened.close()
        return [(row.entry.actor.name, row.entry.action, row.entry.details) for row in rows]

    for account in ("arena", "stadium"):
        assert asyncio.run(entries(account)) == [
            ("operator", "maintenance.started", {"message": "back at ten", "retryAfter": 30}),
            ("operator", "maintenance.ended", {}),
        ]
