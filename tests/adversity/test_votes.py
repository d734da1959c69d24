"""Each process that an answer passes dies while answers flow; the counts are exact."""

import asyncio
import secrets
import signal

import psutil
import pytest

from tests.adversity.faults import COUNTER, TITLES, find, hit, kill
from tests.adversity.votes import VotingShow, open_shows
from tests.deployments.instance import Instance

pytestmark = [pytest.mark.anyio, pytest.mark.cluster, pytest.mark.timeout(600)]

PASSED = ("API replica", "PostgreSQL", "gateway", "owner")
_BEFORE_S = 1.0  # of quiet flow before the kill


@pytest.mark.parametrize("title", [COUNTER, *(TITLES[kind] for kind in PASSED)])
async def test_every_answer_counts_once_when_one_dies(instance: Instance, title: str) -> None:
    """Of visitors of every kind that a poll can require, over HTTP and WebSocket."""
    shows = await asyncio.to_thread(open_shows, instance, instance.token())
    disturb = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for show in shows:
            group.create_task(show.run(disturb, doors=1, after=40, sockets=1))
        await asyncio.sleep(_BEFORE_S)
        assert kill(instance, title), f"no process is called {title}"
        disturb.set()
    assert [f"{show.visitors}: {finding}" for show in shows for finding in show.judge()] == []


async def test_every_vote_of_a_socket_counts_once_when_its_gateway_dies(instance: Instance) -> None:
    url = f"ws://localhost:{instance.ws_port}/api/v1/ws"
    show = VotingShow(instance.url, f"vote-{secrets.token_hex(4)}", instance.token(), ws_url=url)
    disturb = asyncio.Event()
    voting = asyncio.create_task(show.run(disturb, doors=1, after=40, sockets=3))
    await asyncio.sleep(_BEFORE_S)
    assert kill(instance, TITLES["gateway"])
    disturb.set()
    await voting
    assert show.judge() == []


async def test_counter_that_hangs_is_exchanged(instance: Instance) -> None:
    show = VotingShow(instance.url, f"vote-{secrets.token_hex(4)}", instance.token())
    disturb = asyncio.Event()
    voting = asyncio.create_task(show.run(disturb, doors=3, after=40))
    await asyncio.sleep(_BEFORE_S)
    hung = find(instance, COUNTER)
    assert hit(hung, signal.SIGSTOP) == 1
    _, left = await asyncio.to_thread(psutil.wait_procs, hung, 120)
    assert not left
    disturb.set()
    await voting
    assert show.judge() == []
