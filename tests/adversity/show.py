"""A show under way: producers that publish, viewers that follow, and the judge of what all of them saw.

Producers and viewers are the SDK as users have it: retries under an idempotency key, reconnects, recovery by
cursor. Each producer numbers its events, so that the judge can tell what was lost, doubled or reordered from
the logs alone.
"""

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from broker.client import AsyncClient, Cursor, Event, NewEvent, RetryPolicy

_BATCH = 5
_PAUSE_S = 0.02
_SETTLE_S = 120.0


@dataclass
class Show:
    """One program with its producers' and viewers' logs."""

    url: str
    program_id: str
    username: str
    password: str
    acknowledged: dict[int, list[Event]] = field(default_factory=dict)
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
            await client.create_program(self.program_id, self.program_id)
            self.seen = [[] for _ in range(viewers)]
            start = Cursor((await client.last_update(self.program_id)).cursor.epoch, 0)
            following = [asyncio.create_task(self._follow(client, start, log)) for log in self.seen]
            try:
                async with asyncio.TaskGroup() as group:
                    for number in range(producers):
                        group.create_task(self._produce(client, number, disturb, after))
                total = sum(len(log) for log in self.acknowledged.values())
                async with asyncio.timeout(_SETTLE_S):
                    while any(len(log) < total for log in self.seen):
                        self.grown.clear()
                        await self.grown.wait()
                self.stored = await client.events(self.program_id)
            finally:
                for task in following:
                    task.cancel()
                for task in following:
                    with suppress(asyncio.CancelledError):
                        await task

    async def _produce(self, client: AsyncClient, number: int, disturb: asyncio.Event, after: int) -> None:
        log = self.acknowledged.setdefault(number, [])
        left = after
        count = 0
        while left:
            left -= disturb.is_set()
            news = [NewEvent("Count#up", metadata={"by": number, "n": count + n}) for n in range(_BATCH)]
            if count % 2:  # every other publish is a single one
                log.append(await client.publish(self.program_id, "Count#up", news[0].metadata))
            else:
                log.extend(await client.publish_batch(self.program_id, news))
            count = len(log)
            await asyncio.sleep(_PAUSE_S)

    async def _follow(self, client: AsyncClient, start: Cursor, log: list[Event]) -> None:
        async for event in client.subscribe(self.program_id, since=start):
            log.append(event)  # the log is watched while it grows
            self.grown.set()

    def judge(self) -> None:
        """Fail when anything acknowledged was lost, doubled or reordered, anywhere."""
        acknowledged = [event for log in self.acknowledged.values() for event in log]
        total = len(acknowledged)
        assert [event.seq for event in self.stored] == list(range(1, total + 1))
        assert {event.id: event.seq for event in self.stored} == {e.id: e.seq for e in acknowledged}
        for log in self.acknowledged.values():
            assert [event.metadata["n"] for event in log] == list(range(len(log)))
            assert [event.seq for event in log] == sorted(event.seq for event in log)
        for log in self.seen:
            doubled = [seq for seq, times in Counter(event.seq for event in log).items() if times > 1]
            assert doubled == []
            assert [event.seq for event in log] == list(range(1, total + 1))
            assert [event.id for event in log] == [event.id for event in self.stored]
