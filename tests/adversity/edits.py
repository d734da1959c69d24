"""An editor that publishes, corrects, deletes and imports by chance, and what the program must be in the end.

There is one editor, who waits for each answer, so what the program must hold is known at any time. Each
change is tried under one idempotency key until it is answered: made twice or not at all, it would show.
"""

import asyncio
import json
import random
from dataclasses import dataclass, field

from broker.client import AsyncClient, Event, NewEvent, RetryPolicy

_PAUSE_S = 0.01
_IMPORTED = 20
_KINDS = ("publish", "batch", "correct", "delete", "erase", "import")
_WEIGHTS = (8, 4, 6, 3, 1, 1)


@dataclass
class EditedProgram:
    """One program, the events that it must have (id → number), and how often it was pushed to since it began.

    `pushes` counts what the program's current epoch has told: events, corrections and deletions.
    """

    url: str
    program_id: str
    username: str
    password: str
    seed: int
    expected: dict[str, int] = field(default_factory=dict)
    pushes: int = 0
    done: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_KINDS, 0))
    stored: list[Event] = field(default_factory=list)
    seq: int = 0

    async def run(self, disturb: asyncio.Event, *, after: int) -> None:
        """Edit, and go on for `after` changes once `disturb` is set."""
        chance = random.Random(self.seed)
        patient = RetryPolicy(deadline_s=180.0)
        async with AsyncClient(
            self.url, username=self.username, password=self.password, retry=patient
        ) as client:
            await client.programs.create(self.program_id, self.program_id)
            left, number = after, 0
            while left:
                left -= disturb.is_set()
                number += _IMPORTED
                kind = chance.choices(_KINDS, _WEIGHTS)[0] if self.expected else "publish"
                await self._change(client, kind, number, chance)
                self.done[kind] += 1
                await asyncio.sleep(_PAUSE_S)
            self.stored = await client.events.list(self.program_id)
            self.seq = (await client.programs.get_last_update(self.program_id)).cursor.seq

    async def _change(self, client: AsyncClient, kind: str, number: int, chance: random.Random) -> None:
        if kind in ("publish", "batch"):
            count = 1 if kind == "publish" else 5
            news = [NewEvent("Count#up", {"n": number + n}) for n in range(count)]
            events = await client.events.publish_batch(self.program_id, news)
            self.expected |= {event.id: number + n for n, event in enumerate(events)}
            self.pushes += count
        elif kind == "correct":
            chosen = chance.choice(list(self.expected))
            await client.events.update(self.program_id, chosen, metadata={"n": number})
            self.expected[chosen] = number
            self.pushes += 1
        elif kind == "delete":
            chosen = chance.choice(list(self.expected))
            await client.events.delete(self.program_id, chosen)
            del self.expected[chosen]
            self.pushes += 1
        elif kind == "erase":
            await client.events.delete_all(self.program_id)
            self.expected, self.pushes = {}, 0
        else:
            events = [{"event": "Count#up", "metadata": {"n": number + n}} for n in range(_IMPORTED)]
            await client.events.import_all(self.program_id, json.dumps({"events": events}).encode())
            imported = await client.events.list(self.program_id)
            self.expected = {event.id: event.metadata["n"] for event in imported}
            assert sorted(self.expected.values()) == list(range(number, number + _IMPORTED))
            self.pushes = (await client.programs.get_last_update(self.program_id)).cursor.seq

    def judge(self) -> list[str]:
        """What is wrong with the program."""
        findings = []
        stored = {event.id: event.metadata["n"] for event in self.stored}
        if stored != self.expected:
            findings.append(f"stored {len(stored)} events, {len(self.expected)} are expected, or others")
        if self.seq != self.pushes:
            findings.append(f"the program is at {self.seq} after {self.pushes} pushes")
        seqs = [event.seq for event in self.stored]
        if len(set(seqs)) != len(seqs):
            findings.append("two events have one seq")
        return findings
