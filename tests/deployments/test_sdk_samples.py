"""Every sample of the SDK's page runs, against the product; those of analytics do so in tests/client."""

import asyncio
import contextlib
import itertools
from pathlib import Path
from typing import Any

import pytest

from broker.client import Answer, AsyncClient, InvalidRequest, NewEvent
from tests.client.samples import run_sample, samples_of
from tests.deployments.image_server import ImageServer
from tests.deployments.instance import PASSWORD, Instance

pytestmark = [pytest.mark.cluster, pytest.mark.anyio, pytest.mark.timeout(480)]

PAGE = Path(__file__).parents[2] / "docs" / "sdk.md"
PROGRAM, PROJECT = "sdk-final", "sdk-football"
TICK_S = 0.1
LONG_AGO_MS = 1_784_484_000_000  # before the moment that the sample's player shows


async def test_every_sample_runs(
    instance: Instance, image_server: ImageServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a sample writes a file
    replaced = {
        "http://demo.localhost:8000": instance.url,
        'username="producer", password="demo-producer"': f'username="admin", password="{PASSWORD}"',
        "final-2026": PROGRAM,
        "football": PROJECT,
        '"cup"': f'"{PROJECT}-cup"',
        "https://cdn.example.com/players/kim.jpg": image_server.url("/face.jpg"),
    }
    samples = [sample for sample in samples_of(PAGE, replaced) if "create_site" not in sample]
    polls: list[str] = []

    def made(name: str, result: Any) -> None:
        if name == "ask" and isinstance(result, str):
            polls.append(result)

    async with AsyncClient(instance.url, username="admin", password=PASSWORD) as client:
        await client.projects.create("Football", project_id=PROJECT)
        life = asyncio.create_task(_live(client, polls))
        try:
            for sample in samples:
                told = await run_sample(sample, client, made)
                assert "print(" not in sample or told or "except" in sample, f"it printed nothing:\n{sample}"
        finally:
            life.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await life


async def _live(client: AsyncClient, polls: list[str]) -> None:
    """What samples follow: events, changes of a program, stored values, answers."""
    there: set[str] = set()
    for number in itertools.count():
        await asyncio.sleep(TICK_S)
        if not {PROJECT, PROGRAM} <= there:
            there = {each.id for each in (*await client.projects.list(), *await client.programs.list())}
        if PROGRAM in there:
            await client.publish(PROGRAM, NewEvent("Clock#tick", timecode=LONG_AGO_MS + number))
            await client.programs.update(PROGRAM, f"The final {number}", None, None)
            for poll in list(polls):
                answer = Answer("winner", poll, 0, f"visitor-of-the-test-{number}")
                try:
                    await client.responses.add(PROGRAM, [answer], project_id=PROJECT)
                except InvalidRequest:
                    polls.remove(poll)  # a sample imports the program's events, which have other ids then
        if PROJECT in there:
            await client.storage.store(PROJECT, {"number": number}, item_id="ticks")
