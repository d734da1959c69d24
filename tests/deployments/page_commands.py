"""Runs the commands of a page in one shell, and compares what they print with what the page says."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Timer

ROOT = Path(__file__).parents[2]
RUN_S = 240.0  # for all commands and what is done between them; alone they take some seconds
_END = "-- the end of a command --"
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


def run_page(page: str, folder: Path, environment: Mapping[str, str]) -> Iterator[tuple[Command, str]]:
    """Run what a page says in `folder`, which has our `.venv`: each command, and then what it has printed.

    All commands run in one shell, so that variables and the log-in stay. The next one begins when the caller
    asks for it.
    """
    (folder / ".venv").symlink_to(ROOT / ".venv")
    parts = list(read_page(page))
    for part in parts:
        if not isinstance(part, Command):
            (folder / part[0]).write_text(part[1])
    bash = shutil.which("bash")
    assert bash is not None
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BROKER_")}
    shell = subprocess.Popen(
        [bash],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env={**kept, "XDG_CONFIG_HOME": str(folder), **environment},
    )
    late = Timer(RUN_S, shell.kill)
    late.start()
    try:
        for command in filter(lambda part: isinstance(part, Command), parts):
            yield command, _run(shell, command)
    finally:
        late.cancel()
        shell.kill()
        shell.communicate()


def _run(shell: "subprocess.Popen[str]", command: Command) -> str:
    assert shell.stdin is not None
    assert shell.stdout is not None
    # Its input is not ours, from which the shell reads its commands.
    shell.stdin.write(f"{{ {command.text}\n}} </dev/null\nprintf '\\n%s\\n' '{_END}'\n")
    shell.stdin.flush()
    lines = []
    for line in shell.stdout:
        if line == f"{_END}\n":
            return "".join(lines).removesuffix("\n")  # which came before the mark
        lines.append(line)
    raise AssertionError(f"$ {command.text}\n{''.join(lines)}\nThe shell ended here, or ran for {RUN_S:g} s.")
