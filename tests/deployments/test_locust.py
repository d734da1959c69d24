"""The load of `bench/locustfile.py` as a show, over several processes and from its web page."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from broker.deployments.ports import free_port
from tests.deployments.instance import PASSWORD, Instance
from tests.deployments.page_commands import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(480)]

LOCUST = [sys.executable, "-m", "locust", "-f", str(ROOT / "bench" / "locustfile.py")]
STAGES = ["arrival", "kick-off", "goal", "vote", "end"]
LOCAL = "127.0.0.1"


def test_a_show_over_two_processes_has_all_its_stages_and_no_fault(
    instance: Instance, tmp_path: Path
) -> None:
    port, report, figures = str(free_port()), tmp_path / "show.html", tmp_path / "show"
    words = ["--headless", "--processes", "2", "--master-bind-host", LOCAL, "--master-bind-port", port]
    words += ["--master-host", LOCAL, "--master-port", port, "--shape", "ShortShow", "--users", "12"]
    words += ["--program", "show-of-two", "--html", str(report), "--csv", str(figures)]
    done = subprocess.run(
        [*LOCUST, *words],
        env=_environment(instance),
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert "2 workers connected" in done.stderr
    assert re.findall(r"stage (\S+) of ShortShow", done.stderr)[-5:] == STAGES
    with (tmp_path / "show_stats.csv").open() as lines:
        entries = {row["Name"]: row for row in csv.DictReader(lines)}
    assert [name for name, row in entries.items() if int(row["Failure Count"])] == []
    # Of twelve users two publish, eight watch and vote, and two are studios.
    assert 1 <= int(entries["vote"]["Request Count"]) <= 8
    assert int(entries["publish"]["Request Count"]) > 0
    assert int(entries["push"]["Request Count"]) > int(entries["publish"]["Request Count"])
    history = _read_report(report.read_text())["history"]
    assert max(_users_of(point) for point in history) == 12
    assert _users_of(history[0]) < 12


@pytest.mark.parametrize(
    ("words", "choice"),
    [(["--class-picker"], {"shape_class": "ShortShow"}), (["--shape", "ShortShow"], {})],
    ids=["of the page", "of the command line"],
)
def test_a_show_is_started_from_the_web_page(
    instance: Instance, words: list[str], choice: dict[str, str]
) -> None:
    with _web(instance, *words, "--program", f"show-of-{len(choice)}") as page:
        shown = page.get("/").raise_for_status().text
        assert "ShortShow" in shown
        assert "FullShow" in shown
        form = {"user_count": "6", "spawn_rate": "6", "run_time": "10s"} | choice
        began = page.post("/swarm", data=form).raise_for_status().json()
        assert began["success"], began
        assert "ShortShow" in began["message"]
        _until(lambda: page.get("/stats/requests").json()["state"] == "stopped", 120)
        entries = {entry["name"]: entry for entry in page.get("/stats/requests").json()["stats"]}
        assert {"publish", "push", "vote"} <= entries.keys()
        assert [name for name, entry in entries.items() if entry["num_failures"]] == []
        report = page.get("/stats/report").raise_for_status()
        assert report.headers["content-type"].startswith("text/html")
        assert len(_read_report(report.text)["history"]) > 1


def _environment(instance: Instance) -> dict[str, str]:
    return os.environ | {"BROKER_URL": instance.url, "BROKER_PASSWORD": PASSWORD}


@contextmanager
def _web(instance: Instance, *words: str) -> Iterator[httpx.Client]:
    """Locust with its web page; ends it, and its exit status must be 0."""
    port = str(free_port())
    command = [*LOCUST, "--web-host", LOCAL, "--web-port", port, *words]
    with (
        subprocess.Popen(command, env=_environment(instance), stdin=subprocess.DEVNULL) as locust,
        httpx.Client(base_url=f"http://{LOCAL}:{port}", timeout=30) as page,
    ):
        try:
            _until(lambda: _is_there(page), 60)
            yield page
        finally:
            locust.send_signal(signal.SIGTERM)
            assert locust.wait(30) == 0


def _is_there(page: httpx.Client) -> bool:
    try:
        return page.get("/").is_success
    except httpx.TransportError:
        return False


def _until(holds: Callable[[], bool], most_s: float) -> None:
    end_s = time.monotonic() + most_s
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.2)


def _read_report(text: str) -> Any:
    """What the page of a report draws."""
    found = re.search(r"window\.templateArgs = (\{.*\})\s*$", text, re.MULTILINE)
    assert found
    return json.loads(found[1])


def _users_of(point: dict[str, Any]) -> int:
    """How many users a point of the history has; it has the time beside it."""
    users = point["user_count"]
    return int(users[1] if isinstance(users, list) else users)
