"""Grafana's dashboards, made from `deploy/grafana/dashboards.toml` by `make dashboards`; tests compare."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

GRAFANA = Path(__file__).parents[2] / "deploy" / "grafana"
_COLUMNS = 24
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


class Query(NamedTuple):
    """One query of a panel."""

    dashboard: str
    panel: str
    legend: str
    text: str


def read_dashboards() -> list[dict[str, Any]]:
    """The tables of the source."""
    dashboards: list[dict[str, Any]] = tomllib.loads((GRAFANA / "dashboards.toml").read_text())["dashboard"]
    return dashboards


def read_queries() -> Iterator[Query]:
    """The queries of all panels."""
    for dashboard in read_dashboards():
        for panel in dashboard["panel"]:
            for line in panel["queries"]:
                legend, _, text = line.partition(" = ")
                yield Query(dashboard["name"], panel["title"], legend, text)


def render(dashboard: Mapping[str, Any]) -> str:
    """The JSON that Grafana imports or provisions."""
    made = {
        "uid": f"broker-{dashboard['name']}",
        "title": dashboard["title"],
        "description": dashboard["about"],
        "tags": ["broker"],
        "timezone": "browser",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
            ]
        },
        "panels": list(_place(dashboard["panel"])),
    }
    return json.dumps(made, indent=2) + "\n"


def _place(panels: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Panels in rows, from left to right."""
    x = y = row = 0
    for number, panel in enumerate(panels, 1):
        kind = panel.get("kind", "timeseries")
        width, height = panel.get("width", _COLUMNS // 2), 4 if kind == "stat" else 8
        if x + width > _COLUMNS:
            x, y, row = 0, y + row, 0
        yield {
            "id": number,
            "type": kind,
            "title": panel["title"],
            "datasource": _SOURCE,
            "gridPos": {"x": x, "y": y, "w": width, "h": height},
            "fieldConfig": {"defaults": {"unit": panel["unit"]}, "overrides": []},
            "targets": [_target(place, line) for place, line in enumerate(panel["queries"])],
        }
        x, row = x + width, max(row, height)


def _target(place: int, line: str) -> dict[str, Any]:
    legend, _, text = line.partition(" = ")
    legend = re.sub(r"\{(\w+)\}", r"{{\1}}", legend)
    return {"refId": chr(ord("A") + place), "datasource": _SOURCE, "expr": text, "legendFormat": legend}


def main() -> None:
    """Write every dashboard."""
    for dashboard in read_dashboards():
        (GRAFANA / f"{dashboard['name']}.json").write_text(render(dashboard))


if __name__ == "__main__":
    main()
