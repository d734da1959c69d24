import io
import json

from rich.console import Console

from bench.contenders import CONTENDERS, build_load
from bench.measure import Sample, find_faults, plan_rounds
from bench.plots import pick_bars
from bench.report import (
    FIGURES,
    Results,
    build_scenes_table,
    build_table,
    list_versions,
    take_medians,
    write_json,
)

CLEAN = {"lost": 0, "missing": 0, "doubled": 0, "closed": 0, "unrecovered": 0}


def sample(value: float, faults: list[str] | None = None) -> Sample:
    return Sample("a", 1000, "1.2", {"burst_per_s": value, "alone_p50_ms": float("nan")}, faults or [])


def read_cells(table, first: str) -> list[str]:
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(table)
    row = next(line for line in console.export_text().splitlines() if line.startswith(f"│{first}"))
    return [cell.strip() for cell in row.split("│")[1:-1]]


def test_the_median_is_taken_over_the_runs_of_a_contender() -> None:
    medians = take_medians([sample(1), sample(100), sample(3), Sample("b", 1000, "", {"burst_per_s": 7})])
    assert medians == {(1000, "a"): {"burst_per_s": 3}, (1000, "b"): {"burst_per_s": 7}}


def test_a_failed_run_does_not_hide_the_others() -> None:
    failed = Sample("a", 1000, faults=["gone"])
    assert take_medians([sample(5), failed]) == {(1000, "a"): {"burst_per_s": 5}}
    assert list_versions([sample(5), failed]) == {"a": "1.2"}


def test_contenders_stand_side_by_side() -> None:
    cells = read_cells(build_table({(1000, "a"): {"burst_per_s": 1234.4}}, ["a"], 5), "a")
    assert len(cells) == 1 + len(FIGURES)
    shown = {name: cell for (name, _, _), cell in zip(FIGURES, cells[1:], strict=True) if cell != "-"}
    assert shown == {"burst_per_s": "1,234"}


def test_a_scene_shows_all_its_figures() -> None:
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(build_scenes_table("Storms", {"bursts": {"p99_ms": 12.345, "events_lost": 0.0}}, 1))
    text = console.export_text()
    assert "p99 ms" in text
    assert "12.35" in text or "12.34" in text
    assert "events lost" in text


def test_results_are_json_without_what_was_not_measured(tmp_path) -> None:
    samples = [sample(5, ["burst: 1 lost"])]
    results = Results({"cores": 2}, 5, take_medians(samples), samples, {}, {"storms": {"x": {"p99_ms": 1.0}}})
    document = json.loads(write_json(tmp_path / "results", results).read_text())
    assert document["results"] == [{"subscribers": 1000, "contender": "a", "medians": {"burst_per_s": 5}}]
    assert document["runs"][0]["figures"] == {"burst_per_s": 5}
    assert document["runs"][0]["faults"] == ["burst: 1 lost"]
    assert document["versions"] == {"a": "1.2"}
    assert document["scenes"] == {"storms": {"x": {"p99_ms": 1.0}}}


def test_every_kind_of_loss_is_a_fault() -> None:
    assert find_faults("burst", CLEAN) == []
    for kind in CLEAN:
        assert find_faults("burst", CLEAN | {kind: 2}) == [f"burst: 2 {kind}"]


def test_a_burst_has_about_as_many_deliveries_whatever_the_viewers() -> None:
    bursts = {n: plan_rounds(n, False)[-1].messages * n for n in (1000, 5000, 10_000)}
    assert set(bursts.values()) == {200_000}


def test_many_connections_come_from_several_addresses() -> None:
    command = build_load(1, 100_000, CONTENDERS[0])
    assert command[command.index("--sources") + 1] == "21"


def test_a_chart_has_only_what_has_its_unit() -> None:
    scenes = {"bursts": {"p99_ms": 3.0, "CPU_us_a_delivery": 0.5, "deliveries_per_s": 9.0}}
    assert pick_bars(scenes, "_ms") == {"bursts: p99": 3.0}
    assert pick_bars(scenes, "CPU_us") == {"bursts: a delivery": 0.5}
