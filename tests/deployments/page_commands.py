"""Runs the commands of a page in one shell, and compares what they print with what the page says."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUN_S = 120.0  # for all commands; alone they take some seconds
_BLOCK = re.compile(r"^```console\n(.*?)^```$|^Save this as `([\w.]+)`:\n\n```\w+\n(.*?)^```$", re.M | re.S)


@dataclass(frozen=True, slots=True)
class Command:
    """A command as the page has it, and the lines that it prints there; `…` stands for anything."""

    text: str
    printed: tuple[str, ...]

    def is_printed_by(self, output: str) -> bool:
        """Whether the output is what the page says. A line that is `…` stands for any number of lines."""
        pieces = [
            r"(?:.*\n)*" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + r"\n"
            for line in self.printed
        ]
        return re.fullmatch("".join(pieces), output) is not None


def read_page(page: str) -> Iterator[Command | tuple[str, str]]:
    """The commands of a page, and the files that it tells to save, as name and content, in their order."""
    for commands, name, content in _BLOCK.findall(page):
        if name:
            yield name, content
        else:
            yield from _commands(commands)


def _commands(block: str) -> Iterator[Command]:
    text, printed = "", list[str]()
    for line in block.splitlines():
        if line.startswith("$ "):
            if text:
                yield Command(text, tuple(printed))
            text, printed = line[2:], []
        elif line.startswith(">"):
            text += f"\n{line[2:]}"
        else:
            printed.append(line)
    yield Command(text, tuple(printed))


def run_page(page: str, folder: Path, environment: Mapping[str, str]) -> list[tuple[Command, str]]:
    """Run what a page says in `folder`, which has our `.venv`; each command with what it printed.

    All commands run in one shell, so that variables and the log-in stay.
    """
    (folder / ".venv").symlink_to(ROOT / ".venv")
    commands = list[Command]()
    for part in read_page(page):
        if isinstance(part, Command):
            commands.append(part)
        else:
            (folder / part[0]).write_text(part[1])
    mark = "-- the end of a command --"
    script = "\n".join(f"{command.text}\necho '{mark}'" for command in commands)
    bash = shutil.which("bash")
    assert bash is not None
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BROKER_")}
    done = subprocess.run(
        [bash],
        input=script,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env={**kept, "XDG_CONFIG_HOME": str(folder), **environment},
        check=False,
        timeout=RUN_S,
    )
    outputs = done.stdout.split(f"{mark}\n")
    assert len(outputs) == len(commands) + 1, done.stdout
    return list(zip(commands, outputs, strict=False))
