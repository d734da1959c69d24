"""The two producers: scores, line-ups and cards over HTTP, the clock over WebSocket."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from broker.client import AsyncClient, Event, NewEvent, Socket
from broker.client.errors import ConnectionFailed
from broker.clock import Clock
from broker.concurrency.tasks import is_set_within
from broker.demo.portraits import Portraits
from broker.demo.script import Cue, final

Published = Callable[[Event], None]
"""Told of every event that the broker acknowledged."""

_CLOCK = "Clock#update"
_RECONNECT_S = 0.5


@dataclass(frozen=True, slots=True)
class Show:
    """What is played: finals one after the other, each `speed` times as fast as a real one."""

    program_id: str
    seed: int
    speed: float
    portraits: Portraits


async def produce_over_http(
    client: AsyncClient, show: Show, clock: Clock, published: Published, stop: asyncio.Event
) -> None:
    """Publish everything but the clock, until `stop`."""

    async def publish(cue: Cue) -> None:
        now_ms, metadata = clock.now_ms(), show.portraits.add_to(cue.metadata, client)
        if cue.answers_s:
            closes_ms = now_ms + round(cue.answers_s * 1000 / show.speed)
            metadata = metadata | {"opens": now_ms, "closes": closes_ms}
        new = NewEvent(cue.event, metadata, timestamp=now_ms)
        published(await client.publish(show.program_id, new))

    await _play(show, clock, stop, lambda cue: cue.event != _CLOCK, publish)


async def produce_over_websocket(
    client: AsyncClient, show: Show, clock: Clock, published: Published, stop: asyncio.Event
) -> None:
    """Publish the clock over one connection, which is reopened when it is lost, until `stop`."""
    sockets: list[Socket] = []

    async def publish(cue: Cue) -> None:
        key = f"clock-{clock.now_ms()}-{cue.at_s}"
        params = {
            "programId": show.program_id,
            "event": cue.event,
            "metadata": cue.metadata,
            "timestamp": clock.now_ms(),
            "idempotencyKey": key,
        }
        while True:
            try:
                if not sockets:
                    sockets.append(await client.open_socket())
                published(Event.parse(await sockets[0].call("producer", params)))
                return
            except ConnectionFailed:
                await _close(sockets)
                await asyncio.sleep(_RECONNECT_S)

    try:
        await _play(show, clock, stop, lambda cue: cue.event == _CLOCK, publish)
    finally:
        await _close(sockets)


async def _close(sockets: list[Socket]) -> None:
    while sockets:
        await sockets.pop().close()


async def _play(
    show: Show,
    clock: Clock,
    stop: asyncio.Event,
    wanted: Callable[[Cue], bool],
    publish: Callable[[Cue], Awaitable[None]],
) -> None:
    """Publish the wanted cues at their time; a late one is published at once, none is left out."""
    seed, begin_s = show.seed, clock.monotonic_s()
    while True:
        cues = final(seed)
        first_s = cues[0].at_s
        for cue in filter(wanted, cues):
            due_s = begin_s + (cue.at_s - first_s) / show.speed
            if await is_set_within(stop, due_s - clock.monotonic_s()):
                return  # a publish on its way is never cut off
            await publish(cue)
        begin_s += (cues[-1].at_s - first_s) / show.speed
        seed += 1
