"""`broker doctor`."""

import asyncio

import typer
from rich.console import Console
from rich.table import Table

from broker.cli.administration import DatabaseOptions
from broker.cli.output import write_json
from broker.cli.remote import JsonOption
from broker.deployments.doctor import CheckVerdict, Finding, run_checks

_COLOURS = {CheckVerdict.OK: "green", CheckVerdict.WARNING: "yellow", CheckVerdict.ERROR: "red"}


def doctor(*, database: DatabaseOptions, json: JsonOption = False) -> None:
    """Check the configuration and the environment. Exits with 1 if the product would not run."""
    settings = database.settings()
    findings = asyncio.run(run_checks(settings))
    if json:
        write_json([{"check": f.check, "verdict": f.verdict, "detail": f.detail} for f in findings])
    else:
        Console().print(_table(findings))
    if any(finding.verdict is CheckVerdict.ERROR for finding in findings):
        raise typer.Exit(1)


def _table(findings: list[Finding]) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        table.add_row(finding.check, f"[{_COLOURS[finding.verdict]}]{finding.verdict}[/]", finding.detail)
    return table
