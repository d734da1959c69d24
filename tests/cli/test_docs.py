"""Every command line of the CLI's page is one that exists."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from broker.cli.main import COMMANDS, app

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
LINES = re.findall(r"^\$ (.*)$", PAGE, re.MULTILINE)
COMMAND_LINES = [line for line in LINES if not line.startswith("export ")]


def _arguments(line: str) -> list[str]:
    """What follows `broker`, without variables in front and what is piped in."""
    words = shlex.split(re.split(r" [<>] ", line.split(" | ")[-1])[0])
    return words[words.index("broker") + 1 :]


EXAMPLES = [line for lazy in COMMANDS for line in lazy.examples]


@pytest.mark.parametrize("line", [*COMMAND_LINES, *EXAMPLES])
def test_command_line_can_be_read(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("final.json", "events.ndjson", "lineup.json", "everything.backup"):
        Path(name).touch()
    command: Any = get_command(app)
    with command.make_context("broker", _arguments(line), obj={}) as context:
        words = [*context._protected_args, *context.args]
        while words:
            name, command, words = context.command.resolve_command(context, words)
            context = command.make_context(name, words, parent=context)
            words = [*context._protected_args, *context.args]


def test_every_command_has_examples_of_itself() -> None:
    for lazy in COMMANDS:
        assert {_arguments(line)[0] for line in lazy.examples} == {lazy.name}


def test_every_command_is_on_the_page() -> None:
    named = {_arguments(line)[0] for line in COMMAND_LINES}
    assert named == {lazy.name for lazy in COMMANDS}
