import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

from bench import output
from bench.report import Results

MACHINE: dict[str, object] = {"processor": "a processor", "cores": 2, "kernel": "6.1"}


def test_without_matplotlib_the_figures_are_written_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(output, "RESULTS", tmp_path)
    console = Console(width=200, file=io.StringIO(), record=True)
    results = Results(MACHINE, 1, medians={(1000, "broker"): {"alone_p50_ms": 1.5}})
    assert output.conclude(results, [], console) == 0
    assert [file.suffix for file in tmp_path.iterdir()] == [".json"]
    assert "no plots" in console.export_text()
