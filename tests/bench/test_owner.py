import io
import os
import types

import pytest
from rich.console import Console

from bench.owner import Figures, build_table, cpu_s, make_program, measure_owner, measure_statement, part_of

pytestmark = [pytest.mark.anyio]


@pytest.mark.postgres
async def test_an_owner_and_the_statement_alone_are_measured(migrated_dsn: str) -> None:
    await make_program(migrated_dsn)
    for figures in (
        await measure_owner(migrated_dsn, os.getpid(), batch=10, in_flight=2, events=100),
        await measure_statement(migrated_dsn, os.getpid(), events=200),
    ):
        assert figures.per_s > 0
        assert figures.owner_us > 0


def test_a_stack_belongs_to_the_innermost_part_that_it_is_in() -> None:
    def frame_in(file: str) -> types.FrameType:
        scope: dict[str, types.FrameType] = {}
        exec(compile("import sys\nframe = sys._getframe()", file, "exec"), scope)
        return scope["frame"]

    assert part_of(frame_in("/x/broker/owners/encoding.py")) == "encode"
    assert part_of(frame_in("/x/asyncpg/pool.py")) == "asyncpg"
    assert part_of(None) == "loop, driver"


def test_cpu_time_counts_this_process() -> None:
    before = cpu_s(os.getpid())
    while cpu_s(os.getpid()) == before:
        sum(range(10_000))
    assert cpu_s(os.getpid()) > before


def test_the_table_has_medians_and_shares_of_the_owner() -> None:
    runs = [Figures(1000.0 * n, 10.0 * n, 1.0, {"encode": 0.5}) for n in (1, 2, 9)]
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(build_table({"single, 1 in flight": runs}, 3))
    row = next(line for line in console.export_text().splitlines() if "single" in line)
    cells = [cell.strip() for cell in row.split("│")[1:-1]]
    assert cells[:4] == ["single, 1 in flight", "2,000", "20.0", "1.0"]
    assert "10.0" in cells[4:]
