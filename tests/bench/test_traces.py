import io
from pathlib import Path

import pytest
from rich.console import Console

import broker
from bench.traces import STEPS, Step, measure_steps, percent, report

PACKAGE = Path(broker.__file__).parent


@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"{step.file}: {step.line}")
def test_each_step_stands_for_a_line_of_the_program(step: Step) -> None:
    lines = [line.strip() for line in (PACKAGE / step.file).read_text().splitlines()]
    assert step.line in lines


def test_each_step_can_be_timed() -> None:
    taken_ns = measure_steps(loops=100)
    assert len(taken_ns) == len(STEPS)
    assert sum(taken_ns) > 0


def test_a_share_that_is_too_large_is_an_error() -> None:
    console = Console(width=200, file=io.StringIO(), record=True)
    each_ns = [10.0] * len(STEPS)
    assert percent([300.0, 200.0], 100.0) == 0.5
    assert report(console, each_ns, 100.0, 1) == 0
    assert report(console, each_ns, 1.0, 1) == 1
