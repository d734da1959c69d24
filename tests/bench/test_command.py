import asyncio
import json
import time

import pytest

from bench.servers.command import (
    ENVELOPE,
    Message,
    Publish,
    Wait,
    build_params,
    turn_until,
    wait_until_exactly,
)


@pytest.mark.parametrize("size_bytes", [200, 300, 1000])
def test_a_message_has_the_size_asked_for(size_bytes: int) -> None:
    message = ENVELOPE % build_params(Message(41, size_bytes, 5))
    assert len(message) == size_bytes
    assert json.loads(message)["params"]["seq"] == 41


def test_a_message_says_when_it_was_sent() -> None:
    assert json.loads(build_params(Message(1, 300, 12_345)))["sent"] == 12_345


def test_publish_is_read() -> None:
    assert Publish.parse("publish 3 300 2500\n") == Publish(3, 300, 0.0025)


@pytest.mark.parametrize("line", ["publish 1 2", "unpublish 1 2 3", "publish a 2 3", ""])
def test_other_commands_are_refused(line: str) -> None:
    with pytest.raises(ValueError):
        Publish.parse(line)


@pytest.mark.anyio
@pytest.mark.parametrize("wait_until", [turn_until, wait_until_exactly])
@pytest.mark.parametrize("after_s", [-1.0, 0.0005, 0.03])
async def test_nothing_is_published_before_it_is_due(wait_until: Wait, after_s: float) -> None:
    due = time.monotonic() + after_s
    await wait_until(due)
    assert time.monotonic() >= due


@pytest.mark.anyio
async def test_the_event_loop_goes_on_until_just_before_a_message_is_due() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.001)
            turns += 1

    counting = asyncio.create_task(count())
    await wait_until_exactly(time.monotonic() + 0.2)
    counting.cancel()
    assert turns > 10
