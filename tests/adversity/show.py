"""A small show of the SDK: producers that publish, viewers that follow, and their logs for the judge.

Producers and viewers are the SDK as users have it: retries under an idempotency key, reconnects, recovery by
cursor. See `soak` for larger shows with leaner clients.
"""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field

from broker.client import AsyncClient, Cursor, Event, NewEvent, RetryPolicy
from tests.adversity.judge import Publish, Push, Stored, judge, short_id

_BATCH = 5
_PAUSE_S = 0.02
_SETTLE_S = 120.0


@dataclass
class SdkShow:
    """One program with its producers' and viewers' logs."""

    url: str
    program_id: str
    username: str
    password: str
    publishes: list[Publish] = field(default_factory=list)
    seen: list[list[Event]] = field(default_factory=list)
    stored: list[Event] = field(default_factory=list)
    grown: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, disturb: asyncio.Event, *, producers: int, viewers: int, after: int) -> None:
        """Create the program, play, and go on for `after` publishes of each producer once `disturb` is set.

        Raises:
            TimeoutError: a viewer did not see what was acknowledged within two minutes.
        """
        patient = RetryPolicy(deadline_s=180.0)
        async with AsyncClient(
            self.url, username=self.username, password=self.password, retry=patient
        ) as client:
            await client.programs.create(self.program_id, self.program_id)
            self.seen = [[] for _ in range(viewers)]
            start = Cursor((await client.programs.get_last_update(self.program_id)).cursor.epoch, 0)
            following = [asyncio.create_task(self._follow(client, start, log)) for log in self.seen]
            try:
                async with asyncio.TaskGroup() as group:
                    for number in range(producers):
                        group.create_task(self._produce(client, number, disturb, after))
                total = sum(publish.size for publish in self.publishes)
                async with asyncio.timeout(_SETTLE_S):
                    while any(len(log) < total for log in self.seen):
                        self.grown.clear()
                        await self.grown.wait()
                self.stored = await client.events.list(self.program_id)
            finally:
                for task in following:
                    task.cancel()
                for task in following:
                    with suppress(asyncio.CancelledError):
                        await task

    async def _produce(self, client: AsyncClient, number: int, disturb: asyncio.Event, after: int) -> None:
        left = after
        count = 0
        while left:
            left -= disturb.is_set()
            news = [NewEvent("Count#up", metadata={"by": number, "n": count + n}) for n in range(_BATCH)]
            sent_s = time.monotonic()
            if count % 2:  # every other publish is a single one
                events = [await client.publish(self.program_id, "Count#up", news[0].metadata)]
            else:
                events = list(await client.events.publish_batch(self.program_id, news))
            seqs, ids = [event.seq for event in events], [short_id(event.id) for event in events]
            self.publishes.append(Publish(number, count, len(events), sent_s, time.monotonic(), seqs, ids))
            count += len(events)
            await asyncio.sleep(_PAUSE_S)

    async def _follow(self, client: AsyncClient, start: Cursor, log: list[Event]) -> None:
        async for event in client.subscribe(self.program_id, since=start):
            log.append(event)  # the log is watched while it grows
            self.grown.set()

    def judge(self) -> list[str]:
        """The judge's findings."""
        stored = [Stored(e.seq, short_id(e.id), e.metadata["by"], e.metadata["n"]) for e in self.stored]
        seen = {f"viewer {n}": [_push(event) for event in log] for n, log in enumerate(self.seen)}
        return judge(self.publishes, stored, [_push(event) for event in self.stored], seen)


def _push(event: Event) -> Push:
    return Push(event.seq, short_id(event.id))
