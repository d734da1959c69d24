"""Runs the WebSocket fuzzing cases against the echo example and prints a table by section.

The echo example is the gateway's own protocol and server code with a handler that sends every message back.
The cases are those of the Autobahn suite, as packaged by `kosoku`. The exit status is 0 only when each case
passed: behaved as required, or as the specification leaves open.

    python -m tests.conformance [--cases 6.* …] [--address HOST:PORT] [--report DIRECTORY]
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from kosoku import FailureError, run_fuzzingclient
from kosoku._kosoku import CaseResult
from kosoku._report import write_reports
from rich.console import Console

from tests.conformance.echo import running_echo
from tests.conformance.table import build_faults, build_table

PARALLEL_CASES = 4
"""Some cases wait for seconds, others compress for seconds; four keep two cores busy."""
WIDE = 120
"""Columns where the table goes to a file."""


def main() -> int:
    """Run what the command line asks for; 0 when all cases passed."""
    arguments = parse_arguments()
    server: AbstractContextManager[str] = (
        nullcontext(arguments.address) if arguments.address else running_echo()
    )
    console = Console(width=None if sys.stdout.isatty() else WIDE)
    with server as address, console.status("running the WebSocket cases, a few minutes for all of them"):
        results = asyncio.run(run_cases(address, arguments.cases))
    console.print(build_table(results))
    if arguments.report:
        write_reports(results, str(arguments.report))
    faults = build_faults(results)
    if faults.row_count:
        console.print(faults)
    return 1 if faults.row_count or not results else 0


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description="WebSocket conformance.")
    parser.add_argument("--cases", nargs="*", help="case ids or globs such as 9.*; all by default")
    parser.add_argument("--address", help="host:port of a running echo server; starts one by default")
    parser.add_argument("--report", type=Path, help="directory for the full HTML and JSON reports")
    return parser.parse_args()


async def run_cases(address: str, cases: Sequence[str] | None) -> list[CaseResult]:
    """Run the cases against the server at `address`; their results, failed ones included, in case order."""
    try:
        return await run_fuzzingclient(f"ws://{address}", cases or None, concurrency=PARALLEL_CASES)
    except FailureError as failure:
        return list(failure.results)


if __name__ == "__main__":
    sys.exit(main())
