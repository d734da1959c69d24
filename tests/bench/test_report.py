import io
import json

from rich.console import Console

from bench.contenders import CONTENDERS, build_load
from bench.measure import Sample, find_faults, plan_rounds
from bench.report import build_table, take_medians, write_json

CLEAN = {"lost": 0, "missing": 0, "doubled": 0, "closed": 0}


def sample(value: float, faults: list[str] | None = None) -> Sample:
    return Sample("a", 1000, {"burst_per_s": value, "alone_p50_ms": float("nan")}, faults or [])


def test_the_median_is_taken_over_the_runs_of_a_contender() -> None:
    medians = take_medians([sample(1), sample(100), sample(3), Sample("b", 1000, {"burst_per_s": 7})])
    assert medians == {(1000, "a"): {"burst_per_s": 3}, (1000, "b"): {"burst_per_s": 7}}


def test_a_failed_run_does_not_hide_the_others() -> None:
    assert take_medians([sample(5), Sample("a", 1000, faults=["gone"])]) == {(1000, "a"): {"burst_per_s": 5}}


def test_contenders_stand_side_by_side() -> None:
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(build_table({(1000, "a"): {"burst_per_s": 1234.4}, (1000, "b"): {}}, ["a", "b"], 5))
    row = next(line for line in console.export_text().splitlines() if "deliveries/s" in line)
    assert [cell.strip() for cell in row.split("│")[1:-1]] == ["… deliveries/s", "1,234", "-"]


def test_results_are_json_without_what_was_not_measured(tmp_path) -> None:
    samples = [sample(5, ["burst: 1 lost"])]
    path = write_json(tmp_path / "results", {"cores": 2}, take_medians(samples), samples, {})
    document = json.loads(path.read_text())
    assert document["results"] == [{"subscribers": 1000, "contender": "a", "medians": {"burst_per_s": 5}}]
    assert document["runs"][0]["figures"] == {"burst_per_s": 5}
    assert document["runs"][0]["faults"] == ["burst: 1 lost"]


def test_every_kind_of_loss_is_a_fault() -> None:
    assert find_faults("burst", CLEAN) == []
    for kind in CLEAN:
        assert find_faults("burst", CLEAN | {kind: 2}) == [f"burst: 2 {kind}"]


def test_a_burst_has_about_as_many_deliveries_whatever_the_viewers() -> None:
    bursts = {n: plan_rounds(n, False)[-1].messages * n for n in (1000, 5000, 10_000)}
    assert set(bursts.values()) == {200_000}


def test_many_connections_come_from_several_addresses() -> None:
    command = build_load(1, 100_000, CONTENDERS[0])
    assert command[command.index("--sources") + 1] == "6"
