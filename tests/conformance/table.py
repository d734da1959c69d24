"""What the cases' results look like on a terminal."""

from collections import Counter
from collections.abc import Iterable, Sequence

from kosoku._kosoku import CaseResult
from rich.table import Table

SECTIONS = {
    1: "Framing",
    2: "Pings and pongs",
    3: "Reserved bits",
    4: "Opcodes",
    5: "Fragmentation",
    6: "UTF-8",
    7: "Closing",
    9: "Limits and performance",
    10: "Fragmented sending",
    12: "Compression, different payloads",
    13: "Compression, different offers",
}


def build_table(results: Sequence[CaseResult]) -> Table:
    """One row a section, with how many of its cases ended how, and a row for all."""
    table = Table("section", title="WebSocket conformance", title_justify="left")
    table.columns[0].no_wrap = True
    for name in ("cases", "ok", "non-strict", "info", "failed", "seconds"):
        table.add_column(name, justify="right")
    for number in sorted({section_of(result) for result in results}):
        own = [result for result in results if section_of(result) == number]
        table.add_row(f"{number:2} {SECTIONS.get(number, '')}", *count(own))
    table.add_section()
    table.add_row("all", *count(results))
    return table


def build_faults(results: Iterable[CaseResult]) -> Table:
    """One row for each case that did not pass, with what was wrong."""
    table = Table("case", "behaviour", "close", "why", title="Not passed", title_justify="left")
    for result in results:
        if not result.passed:
            why = f"{result.result} {result.result_close}"
            table.add_row(result.case_id, result.behavior.value, result.behavior_close.value, why)
    return table


def count(results: Sequence[CaseResult]) -> list[str]:
    """The cells of a row: cases, three ways to pass, failures, and time (s) the cases took in sum."""
    passed = Counter(result.behavior.value for result in results if result.passed)
    seconds = sum(result.duration for result in results) / 1000
    counts = [
        len(results),
        passed["OK"],
        passed["NON-STRICT"],
        passed["INFORMATIONAL"],
        len(results) - passed.total(),
    ]
    return [*map(str, counts), f"{seconds:.1f}"]


def section_of(result: CaseResult) -> int:
    """The first number of a case's id."""
    return int(result.case_id.split(".")[0])
