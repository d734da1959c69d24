"""Alert rules, dashboards and runbooks agree with each other and with the metrics that there are."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.metrics.catalogue import CATALOGUE, PROCESS_LABELS
from tests.deployments.dashboards import GRAFANA, read_dashboards, read_queries, render
from tests.deployments.observability import find_tool
from tests.deployments.rules import RULES, read_rules

ROOT = Path(__file__).parents[2]
RUNBOOKS = ROOT / "docs" / "runbooks.md"
PROMTOOL = find_tool("promtool")  # `make observability` fetches one
_WORDS = re.compile(r"(?<![\w:])((?:\w+:)?broker[\w:]+)(\{[^}]*\})?")
_GROUPS = re.compile(r"\b(?:by|without|on|ignoring) \(([^)]*)\)")


def series() -> dict[str, set[str]]:
    """The labels of every series that may be asked for, recorded ones included."""
    known: dict[str, set[str]] = {}
    for each in CATALOGUE:
        labels = {*PROCESS_LABELS, *each.labels, "instance", "job"}
        if each.kind == "histogram":
            known |= {f"{each.name}_{end}": labels for end in ("count", "sum")}
            known[f"{each.name}_bucket"] = {*labels, "le"}
        else:
            known[each.name] = labels
    for rule in read_rules():
        if not rule.is_alert:
            # level:metric:operations; the level has the labels that are left.
            level = rule.name.partition(":")[0]
            known[rule.name] = set() if level == "broker" else {level}
    return known


def faults(text: str) -> Iterator[str]:
    """Series, matched labels and grouped labels of a query that are not there."""
    known, seen = series(), set[str]()
    for name, matchers in _WORDS.findall(text):
        if name not in known:
            yield name
            continue
        seen |= known[name]
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", matchers):
            if label not in known[name]:
                yield f"{name}{{{label}}}"
    if not seen and not _WORDS.search(text):
        yield "no series"
    for group in _GROUPS.findall(text):
        yield from (f"by ({label})" for label in group.split(", ") if label not in seen)


def test_a_query_of_what_is_not_there_is_found() -> None:
    assert list(faults("sum(broker_gatways)")) == ["broker_gatways"]
    assert list(faults('rate(broker_votes_total{kind="x"}[5m])')) == ["broker_votes_total{kind}"]
    assert list(faults("sum by (slot) (broker_votes_total)")) == ["by (slot)"]
    assert list(faults("broker_commit_duration_seconds")) == ["broker_commit_duration_seconds"]
    assert list(faults("vector(0)")) == ["no series"]
    assert list(faults("max(slot:broker_write_duration_seconds:p99)")) == []


@pytest.mark.parametrize("rule", read_rules(), ids=lambda rule: rule.name)
def test_rules_ask_for_series_and_labels_that_exist(rule: object) -> None:
    found = next(each for each in read_rules() if each == rule)
    assert list(faults(found.text)) == []
    if not found.is_alert:
        level = found.name.partition(":")[0]
        kept = re.search(r"by \(([^)]*)\)", found.text)
        labels = set(kept[1].split(", ")) - {"le"} if kept else set()
        assert labels == ({level} - {"broker"})


def test_panels_ask_for_series_and_labels_that_exist() -> None:
    for query in read_queries():
        assert list(faults(query.text)) == [], query
        shown = set(re.findall(r"\{(\w+)\}", query.legend))
        kept = {label for group in _GROUPS.findall(query.text) for label in group.split(", ")}
        kept |= {"slot", "outcome"} if ":broker" in query.text else set()
        assert shown <= kept, query


def test_alerts_say_what_is_the_matter_and_where_to_read_on() -> None:
    alerts = [rule for rule in read_rules() if rule.is_alert]
    assert len({rule.name for rule in alerts}) == len(alerts) >= 10
    for rule in alerts:
        assert rule.labels.keys() == {"severity"}
        assert rule.labels["severity"] in {"page", "ticket"}
        assert rule.annotations.keys() == {"summary", "description", "runbook_url"}
        assert rule.annotations["runbook_url"] == f"docs/runbooks.md#{rule.name.lower()}"
        assert re.fullmatch(r"[0-9]+[smh]", rule.waits)
        gone = re.findall(r"\$labels\.(\w+)", "".join(rule.annotations.values()))
        assert set(gone) <= {"part", "process", "pid", "node", "slot", "queue", "task", "door"}


def test_every_alert_has_its_runbook_and_its_test() -> None:
    alerts = [rule.name for rule in read_rules() if rule.is_alert]
    text = RUNBOOKS.read_text()
    assert re.findall(r"^## (\w+)$", text, re.MULTILINE) == alerts
    for section in text.split("\n## ")[1:]:
        assert re.findall(r"^\*\*(\w+)\*\*", section, re.MULTILINE) == ["Means", "Look", "Do"], section
    tested = re.findall(r'alertname="(\w+)"', (RULES / "alerts_test.yml").read_text())
    assert set(tested) == set(alerts)


@pytest.mark.skipif(PROMTOOL is None, reason="there is no promtool on this machine")
def test_alerts_fire_in_the_cases_that_are_theirs() -> None:
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, "test", "rules", RULES / "alerts_test.yml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_runbooks_name_log_lines_settings_and_metrics_that_exist() -> None:
    text = RUNBOOKS.read_text()
    sources = "".join(path.read_text() for path in (ROOT / "python" / "broker").rglob("*.py"))
    for line in re.findall(r"`((?:slot|gateway|process|commit|history|answers|task)_[a-z_]+)`", text):
        assert f'"{line}"' in sources, line
    for setting in re.findall(r"BROKER_\w+", text):
        assert setting in (ROOT / "docs" / "settings.md").read_text(), setting
    for link in re.findall(r"\(#(\w+)\)", text):
        assert f"#{link}" in {f"#{rule.name.lower()}" for rule in read_rules()}
    titles = {panel["title"] for dashboard in read_dashboards() for panel in dashboard["panel"]}
    beginnings = {title.split(",")[0] for title in titles} | titles
    named = set(re.findall(r"\*([A-Z][^*]+)\*(?!\*)", text)) - {"Means", "Look", "Do"}
    assert named <= beginnings
    for name in re.findall(r"\bbroker_\w+", text):
        assert name in series(), name


def test_pages_name_metrics_that_exist() -> None:
    known = set(series()) | {each.name for each in CATALOGUE}
    for page in (ROOT / "docs").glob("*.md"):
        named = re.findall(
            r"`(broker_\w+_(?:total|seconds|bytes|generation|up|loops|fds))`", page.read_text()
        )
        assert set(named) <= known, page.name


def test_dashboards_are_made_from_their_source() -> None:
    dashboards = {f"{each['name']}.json": each for each in read_dashboards()}
    assert {path.name for path in GRAFANA.glob("*.json")} == set(dashboards)
    for name, dashboard in dashboards.items():
        text = (GRAFANA / name).read_text()
        assert text == render(dashboard), "run `make dashboards`"
        panels = json.loads(text)["panels"]
        assert len({panel["title"] for panel in panels}) == len(panels)
        places = [tuple(panel["gridPos"].values()) for panel in panels]
        assert len(set(places)) == len(places)
        assert [place for place in places if place[0] + place[2] > 24] == [], "Grafana has 24 columns"
