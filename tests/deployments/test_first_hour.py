"""What a newcomer runs: commands of tutorial, README and page on lists as they are, and a load."""

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from broker.client import AsyncClient
from tests.client.samples import run_sample, samples_of
from tests.deployments.instance import PASSWORD, Instance
from tests.deployments.page_commands import ROOT, Command, read_page, run_page
from tests.javascript.watch import Watch

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(480)]

URL = "http://localhost:8000"
TUTORIAL, README = ROOT / "docs" / "first-hour.md", ROOT / "README.md"
START = ["make build", f"BROKER_ADMIN_PASSWORD={PASSWORD} .venv/bin/broker up"]
OVERLAY = f"{URL}/overlay/?program=cup-final"
SEEN = {
    "Score#show": ((".goals", "0"),),
    "Score#update": ((".goals", "1"),),
    "Poll#show": ((".question", "Who wins?"), (".total", "0 votes")),
    "measureValue": ((".share", "100%"), (".total", "3 votes")),
    "goals.py": ((".goals", "3"),),
}
"""What the overlay of the tutorial shows after the first command with such a text."""
ENDLESS = "broker tail final-2026 --history 10"
TICK_S = 0.1


def test_the_first_hour_runs_as_it_is_written(instance: Instance, tmp_path: Path) -> None:
    start, _, rest = TUTORIAL.read_text().partition("Go on in a second terminal")
    assert [part.text for part in read_page(start) if isinstance(part, Command)] == START
    assert OVERLAY in rest
    seen = dict(SEEN)
    with Watch() as watch:
        for command in _run(rest, instance, tmp_path):
            if "program create" in command.text:
                watch.open(OVERLAY.replace(URL, instance.url))
            for text in [text for text in seen if text in command.text]:
                for selector, words in seen.pop(text):
                    watch.until(selector, words)
    assert seen == {}


def test_addresses_of_the_first_hour_are_there(instance: Instance) -> None:
    addresses = set(re.findall(rf"<({URL}[^>]*)>", TUTORIAL.read_text()))
    assert len(addresses) == 3
    for address in addresses:
        reply = httpx.get(address.replace(URL, instance.url), headers={"Accept": "text/html"}, timeout=20)
        assert (reply.status_code, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")


def test_the_readme_runs_as_it_is_written(instance: Instance, tmp_path: Path) -> None:
    page = README.read_text().partition("## Reference")[0]
    start, _, rest = page.partition("In another terminal")
    assert [part.text for part in read_page(start) if isinstance(part, Command)][-2:] == START
    assert ENDLESS in rest
    deque(_run(rest.replace(ENDLESS, f"{ENDLESS} --count 1"), instance, tmp_path))
    asyncio.run(_run_samples(instance))


def test_the_page_on_lists_runs_as_it_is_written(instance: Instance, tmp_path: Path) -> None:
    path = {"PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"}
    deque(_run((ROOT / "docs" / "lists.md").read_text(), instance, tmp_path, path))


def test_six_users_of_the_load_do_all_that_users_do_without_a_fault(instance: Instance) -> None:
    words = ["--headless", "--users", "6", "--spawn-rate", "6", "--run-time", "15s", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "locust", "-f", ROOT / "bench" / "locustfile.py", *words],
        env=os.environ | {"BROKER_URL": instance.url, "BROKER_PASSWORD": PASSWORD},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    entries = {entry["name"]: entry for entry in json.loads(done.stdout)}
    assert {"publish", "subscribe", "push", "publish (show)", "publish to own screen"} <= entries.keys()
    assert [name for name, entry in entries.items() if entry["num_failures"]] == []
    # Four viewers and the studio follow, and each gets what the producer and the studio publish.
    assert entries["subscribe"]["num_requests"] >= 5
    assert entries["push"]["num_requests"] > entries["publish"]["num_requests"]


def _run(
    text: str, instance: Instance, folder: Path, environment: Mapping[str, str] | None = None
) -> Iterator[Command]:
    """The commands of a page, each when it has printed what the page says."""
    variables = {"BROKER_URL": instance.url, **(environment or {})}
    for command, output in run_page(text.replace(URL, instance.url), folder, variables):
        assert command.is_printed_by(output), f"$ {command.text}\n{output}"
        yield command


async def _run_samples(instance: Instance) -> None:
    """Those of the README, for the program that its commands made, and those of the page on answers."""
    demo = {"demo.localhost:8000": "localhost:8000", "demo-producer": PASSWORD, '"producer"': '"admin"'}
    names = {'"final"': '"readme-final"', '"football"': '"readme-football"'}
    samples = samples_of(README, {URL: instance.url})
    samples += samples_of(ROOT / "docs" / "answers.md", {**demo, **names, URL: instance.url})
    async with AsyncClient(instance.url, username="admin", password=PASSWORD) as client:
        await client.projects.create("Football", project_id="readme-football")
        await client.programs.create("readme-final", "The final", project_id="readme-football")
        life = asyncio.create_task(_publish(client))
        try:
            for sample in samples:
                assert await run_sample(sample, client), sample
        finally:
            life.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await life


async def _publish(client: AsyncClient) -> None:
    while True:
        await client.publish("final-2026", "Clock#tick")
        await asyncio.sleep(TICK_S)
