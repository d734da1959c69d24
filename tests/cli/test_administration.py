"""`broker account` and `broker user` on a real database."""

import orjson
import pytest

from broker.cli.main import run

pytestmark = pytest.mark.postgres


@pytest.fixture
def database(migrated_dsn: str) -> list[str]:
    return ["--database-url", migrated_dsn]


def test_unmigrated_database_says_what_to_do(postgres_dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["account", "list", "--database-url", postgres_dsn]) == 1
    assert "run `broker migrate`" in capsys.readouterr().err


def test_accounts_are_made_changed_and_listed(
    database: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["account", "add", "arena", *database]) == 0
    assert run(["account", "set", "arena", "--origin", "https://a.example", *database]) == 0
    capsys.readouterr()
    assert run(["account", "list", "--json", *database]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    account = orjson.loads(line)
    assert (account["name"], account["origins"]) == ("arena", ["https://a.example"])


def test_second_account_of_a_name_is_one_line(
    database: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["account", "add", "arena", *database]) == 0
    assert run(["account", "add", "arena", *database]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1


def test_users_are_made_changed_and_removed(database: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    user = ["--account", "arena", *database]
    assert run(["account", "add", "arena", *database]) == 0
    for name in ("ada", "ben"):
        assert run(["user", "add", name, "--role", "admin", "--password", "correct-horse", *user]) == 0
    assert run(["user", "role", "ben", "client", *user]) == 0
    assert run(["user", "passwd", "ben", "--password", "battery-staple", *user]) == 0
    capsys.readouterr()
    assert run(["user", "list", "--json", *user]) == 0
    users = [orjson.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["username"], one["role"]) for one in users] == [("ada", "admin"), ("ben", "client")]
    assert all("password" not in key.lower() for one in users for key in one)
    assert run(["user", "delete", "ben", *user]) == 0
    assert run(["user", "delete", "ada", *user]) == 1
    assert "admin" in capsys.readouterr().err


def test_short_password_names_the_field(database: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["account", "add", "arena", *database]) == 0
    arguments = ["user", "add", "ada", "--role", "user", "--password", "short", "--account", "arena"]
    assert run([*arguments, *database]) == 1
    assert capsys.readouterr().err.startswith("error: password")


def test_origins_must_be_told_in_one_way(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["account", "set", "arena", "--any-origin", "--no-origin"]) == 2
    assert "either --origin" in capsys.readouterr().err
