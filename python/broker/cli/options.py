"""Options that many commands share: a group is declared once, and a command takes it as one parameter.

A group is a dataclass, each of whose fields is an option with a default. A parameter of such a type, which is
keyword-only because options come in no order, stands for all of them.
"""

import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import wraps
from inspect import Parameter
from typing import Any, TypeVar

import typer

C = TypeVar("C", bound=Callable[..., Any])


class Commands(typer.Typer):
    """The commands below one command; each may take groups of options."""

    def __init__(self, text: str) -> None:
        super().__init__(help=text, no_args_is_help=True, add_completion=False)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[C], C]:
        """Add a command, as Typer does."""
        add = super().command(name, **settings)

        def register(command: C) -> C:
            add(expand(command))
            return command

        return register


def expand(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command as Typer has to see it: with the options of its groups in place of the groups."""
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, dict[str, Parameter]] = {}
    expanded: list[Parameter] = []
    for parameter in signature.parameters.values():
        own, kind = {parameter.name: parameter}, parameter.annotation
        if isinstance(kind, type) and is_dataclass(kind):
            own = dict(inspect.signature(kind, eval_str=True).parameters)
            groups[parameter.name] = own
        expanded += [option.replace(kind=Parameter.KEYWORD_ONLY) for option in own.values()]

    @wraps(command)
    def run(**given: Any) -> Any:
        for name, own in groups.items():
            given[name] = signature.parameters[name].annotation(**{each: given.pop(each) for each in own})
        return command(**given)

    run.__signature__ = signature.replace(parameters=expanded)  # type: ignore[attr-defined]  # what Typer reads
    return run
