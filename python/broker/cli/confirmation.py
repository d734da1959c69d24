"""The question before something is deleted for ever."""

import sys
from typing import Annotated

import typer

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def confirm(question: str, yes: bool) -> None:
    """Ask on the terminal, unless `yes` was given.

    Raises:
        BadParameter: there is no terminal to ask on.
        Abort: the answer is no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter("--yes is required, because there is no terminal to ask on")
    typer.confirm(question, abort=True, err=True)
