"""The voters and the results that they follow, against both real doors."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from broker.client import AsyncClient, Event
from broker.clock import SystemClock
from broker.demo.figures import judge_answers
from broker.demo.voters import Results, Voters
from tests.client.doors import open_doors
from tests.gateway.world import World, open_world

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

POLL = {"title": "Who wins?", "measureName": "winner", "options": ["Home", "Away", "Nobody"]}
VOTERS = 60


@pytest.fixture
async def world(migrated_dsn: str, anyio_backend: str) -> AsyncIterator[World]:
    async with open_world(
        migrated_dsn, responses_rate_per_address=0.0, responses_rate_per_connection=0.0
    ) as world:
        yield world


async def _ask(client: AsyncClient, lasts_s: float) -> Event:
    now_ms = SystemClock().now_ms()
    closes_ms = now_ms + round(lasts_s * 1000)
    return await client.publish("final", "Poll#show", {**POLL, "opens": now_ms - 1_000, "closes": closes_ms})


async def test_answers_over_connections_that_are_lost_count_once(world: World) -> None:
    async with (
        open_doors(world) as doors,
        AsyncClient(doors.url, token=world.product.tokens["admin"]) as admin,
    ):
        program = await admin.programs.create("final", "The final")
        async with AsyncClient(doors.url) as client, asyncio.timeout(60):
            voters = Voters(client, program, VOTERS, 1, SystemClock())
            results = Results(admin, program)
            tasks = [asyncio.create_task(voters.vote()), asyncio.create_task(results.follow())]
            # long enough that nobody comes too late, however slow the machine
            poll = await _ask(admin, 30)
            voters.hear(await admin.publish("final", "Score#update"))
            for event in (poll, await _ask(admin, 2)):
                voters.hear(event)
            while voters.votes.acknowledged < VOTERS // 2:  # noqa: ASYNC110 - it tells by nothing else
                await asyncio.sleep(0.02)
            doors.relay.cut()
            while len(voters.votes.counted) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            voters.end()
            await tasks[0]
            counted = voters.votes.counted
            await results.wait_for({context: counts.total() for context, counts in counted.items()})
            tasks[1].cancel()
            report = {
                entry.context_id: {option.measure_value: option.total for option in entry.options}
                for entry in await admin.responses.get_report("final")
            }
    assert judge_answers(voters.votes, report, results.told) == ()
    assert voters.votes.sent - voters.votes.late == voters.votes.acknowledged >= VOTERS // 2


async def test_answer_after_the_end_is_late(world: World) -> None:
    async with (
        open_doors(world) as doors,
        AsyncClient(doors.url, token=world.product.tokens["admin"]) as admin,
    ):
        program = await admin.programs.create("final", "The final")
        voters = Voters(admin, program, 4, 1, SystemClock())
        voting = asyncio.create_task(voters.vote())
        voters.hear(await _ask(admin, 0))
        async with asyncio.timeout(30):
            while voters.votes.late < 4:  # noqa: ASYNC110 - it tells by nothing else
                await asyncio.sleep(0.02)
            voters.end()
            await voting
    assert (voters.votes.sent, voters.votes.acknowledged, voters.votes.faults) == (4, 0, [])
