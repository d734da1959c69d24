"""Commands in a directory that has no database."""

from pathlib import Path

import pytest

from broker.cli.main import run

COMMANDS = (
    ["account", "list"],
    ["account", "add", "arena"],
    ["account", "show", "arena"],
    ["account", "visitors", "arena"],
    ["account", "set", "arena", "--image-host", "a.test"],
    ["user", "list"],
    ["user", "add", "ada", "--role", "admin", "--password", "correct-horse"],
    ["keys", "list"],
    ["scale"],
    ["maintenance", "status"],
    ["maintenance", "on"],
    ["migrate"],
    ["backup", "nightly.bak"],
    ["move", "--to", "postgresql://localhost:1/broker"],
)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_command_makes_no_database(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BROKER_DATABASE_URL", raising=False)
    assert run([*words, "--data-dir", "data"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: there is no database in {tmp_path / 'data'}; `broker up` makes it")
    assert [*tmp_path.iterdir()] == []
