"""Commands that are imported only when they run.

`broker --help` and shell completion must answer at once, and the commands that speak to a running broker must
not load the server. So the table of commands holds names and texts; what they name is imported on use.
"""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from broker.cli.options import expand


@dataclass(frozen=True, slots=True)
class Lazy:
    """Where a command is.

    Attributes:
        target: `module:attribute`, as entry points are written: its function, or a `Typer` with commands of
            its own.
        examples: command lines that its help shows.
    """

    name: str
    target: str
    summary: str
    examples: tuple[str, ...]


class LazyCommand(TyperCommand):
    """Stands for a command in lists; the first use loads the real one."""

    def __init__(self, lazy: Lazy) -> None:
        super().__init__(lazy.name, help=lazy.summary)
        self._lazy = lazy

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Make the real command's context, so that everything after this is the real one's."""
        return self._load().make_context(info_name, args, parent=parent, **extra)

    def _load(self) -> Any:
        module, _, attribute = self._lazy.target.partition(":")
        target = getattr(importlib.import_module(module), attribute)
        if isinstance(target, typer.Typer):
            command = get_command(target)
        else:
            app = typer.Typer(add_completion=False)
            app.command(self._lazy.name)(expand(target))
            command = get_command(app)
        command.name = self._lazy.name
        # An empty line keeps two lines apart.
        command.epilog = "\n\n".join(("Examples:", *(f"$ {line}" for line in self._lazy.examples)))
        return command


def lazy_group(table: Sequence[Lazy]) -> type[TyperGroup]:
    """A group class with the commands of `table`, listed in its order."""

    class LazyGroup(TyperGroup):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            for lazy in table:
                self.add_command(LazyCommand(lazy))

        def list_commands(self, _: Any) -> list[str]:
            return [lazy.name for lazy in table]

    return LazyGroup
