"""Load by Locust, started as a newcomer starts it, and the stages of its shows."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from bench.show_stages import FULL, GOAL, SHORT, VOTE, Stage, find_moment, total_s
from broker.deployments.ports import free_port

FILE = Path(__file__).parents[2] / "bench" / "locustfile.py"
SHOWS = [FULL, SHORT]


@pytest.mark.parametrize("shape", [[], ["--shape", "ShortShow"]])
def test_where_no_broker_answers_the_run_ends_and_says_so(shape: list[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "locust",
            "-f",
            FILE,
            "--headless",
            "--users",
            "6",
            "--run-time",
            "60s",
            *shape,
        ],
        env=os.environ | {"BROKER_URL": url, "BROKER_PASSWORD": "secret"},
        capture_output=True,
        text=True,
        check=False,
        timeout=55,  # before the time of the run is over
    )
    assert done.returncode == 1, done.stderr
    assert f"no response from {url}/api/v1: " in done.stderr
    assert "is `broker up` running?" in done.stderr
    assert "secret" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "environment"), [(["--shape", "Intermission"], {}), ([], {"LOCUST_SHAPE": "Intermission"})]
)
def test_a_show_that_is_not_there_is_refused_with_those_that_are(
    words: list[str], environment: dict[str, str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "locust", "-f", FILE, "--headless", *words],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=55,
    )
    assert done.returncode == 2
    assert re.search(r"--shape.*FullShow.*ShortShow", done.stderr)


@pytest.mark.parametrize(("stages", "seconds"), [(FULL, 360), (SHORT, 22)])
def test_stages_add_up_to_a_show(stages: Sequence[Stage], seconds: float) -> None:
    assert total_s(stages) == seconds
    assert [stage.name for stage in stages] == ["arrival", "kick-off", GOAL, VOTE, "end"]
    assert find_moment(stages, seconds - 0.001, 10) is not None
    assert find_moment(stages, seconds, 10) is None


@pytest.mark.parametrize("stages", SHOWS)
def test_users_come_stay_and_go(stages: Sequence[Stage]) -> None:
    seconds = total_s(stages)
    moments = [find_moment(stages, seconds * part / 1000, 1_000) for part in range(1000)]
    users = {
        name: [one.users for one in moments if one and one.stage.name == name]
        for name in ["arrival", "kick-off", "goal", "vote", "end"]
    }
    assert users["arrival"] == sorted(users["arrival"])
    assert users["kick-off"] == sorted(users["kick-off"])
    assert set(users["goal"] + users["vote"]) == {1_000}
    assert users["end"] == sorted(users["end"], reverse=True)
    assert users["arrival"][0] == 1
    assert users["end"][-1] <= 10
    # No stage begins with a jump.
    everyone = [one.users for one in moments if one]
    assert max(abs(later - earlier) for earlier, later in pairwise(everyone)) <= 10


def test_a_moment_is_what_was_computed_by_hand() -> None:
    stages = (Stage("arrival", 10, 0.5), Stage("kick-off", 5, 1.0), Stage("end", 5, 0.0))
    found = [find_moment(stages, at, 100) for at in (0, 4, 10, 12.5, 15, 17.5)]
    assert [(one.stage.name, one.users, one.users_per_s) for one in found if one] == [
        ("arrival", 1, 5),  # never nobody
        ("arrival", 20, 5),
        ("kick-off", 50, 10),
        ("kick-off", 75, 10),
        ("end", 100, 20),
        ("end", 50, 20),
    ]


def test_a_run_time_stretches_all_stages() -> None:
    assert find_moment(SHORT, 110 - 0.01, 10, run_s=110) is not None
    assert find_moment(SHORT, 110, 10, run_s=110) is None
    stretched, plain = find_moment(SHORT, 40, 100, run_s=110), find_moment(SHORT, 8, 100)
    assert stretched
    assert plain
    assert (stretched.stage, stretched.users) == (plain.stage, plain.users)
    assert stretched.users_per_s == pytest.approx(plain.users_per_s / 5)
