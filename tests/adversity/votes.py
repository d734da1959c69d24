"""A small vote: doors that send answers until they are acknowledged, a reader, and what must come out.

Each visitor always chooses the same, so a repeated answer changes nothing, whether the first try was counted
or not: in the end exactly every visitor is counted once.
"""

import asyncio
import random
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx

_OPTIONS = ["Home", "Away", "Draw"]
_BATCH = 20
_PAUSE_S = 0.02
_PATIENCE_S = 180.0
_SETTLE_S = 30.0
_RETRY_S = 0.1


@dataclass
class VotingShow:
    """One poll of one program; `url` without a path, `headers` with a token that may publish."""

    url: str
    program_id: str
    headers: dict[str, str]
    account: str = "demo"
    context: str = ""
    chosen: dict[str, int] = field(default_factory=dict)
    seen: list[int] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=dict)
    acknowledged_s: list[float] = field(default_factory=list)

    async def run(self, disturb: asyncio.Event, *, doors: int, after: int) -> None:
        """Vote, and go on for `after` batches of each door once `disturb` is set; each batch is sent twice.

        Raises:
            TimeoutError: a batch was not acknowledged within three minutes, or the results do not show all.
        """
        async with httpx.AsyncClient(base_url=f"{self.url}/api/v1", timeout=30) as client:
            program = {"id": self.program_id, "name": self.program_id}
            await self._insist(client, "/programs", program)
            event = {"event": "Poll#open", "metadata": {"title": "Who wins", "options": _OPTIONS}}
            self.context = (await self._insist(client, f"/programs/{self.program_id}/events", event))["id"]
            reading = asyncio.create_task(self._read(client))
            try:
                async with asyncio.TaskGroup() as group:
                    for door in range(doors):
                        group.create_task(self._vote(client, door, disturb, after))
                async with asyncio.timeout(_SETTLE_S):
                    while not self.seen or self.seen[-1] < len(self.chosen):  # noqa: ASYNC110 - nobody tells
                        await asyncio.sleep(_RETRY_S)
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
            path = f"/responses/{self.account}/undefined/{self.program_id}/report"
            reply = await client.get(path, headers=self.headers)
            self.report = reply.raise_for_status().json()

    @property
    def longest_pause_s(self) -> float:
        """The longest time without an acknowledgement."""
        return max(later - earlier for earlier, later in pairwise(self.acknowledged_s))

    def judge(self) -> list[str]:
        """What is wrong with the report of the program, and with what the reader saw."""
        findings = []
        expected = [list(self.chosen.values()).count(option) for option in range(len(_OPTIONS))]
        (poll,) = self.report["responses"]
        counted = [option["total"] for option in poll["options"]]
        if counted != expected:
            findings.append(f"{counted} were counted, {expected} were acknowledged")
        if max(self.seen) > len(self.chosen):
            findings.append(f"results said {max(self.seen)} of {len(self.chosen)}")
        return findings

    async def _vote(self, client: httpx.AsyncClient, door: int, disturb: asyncio.Event, after: int) -> None:
        left, sent = after, 0
        chance = random.Random(door)
        while left:
            left -= disturb.is_set()
            fresh = {f"{door}-{sent + n}": chance.randrange(len(_OPTIONS)) for n in range(_BATCH)}
            sent += _BATCH
            first = await self._answer(client, fresh)
            self.chosen |= fresh
            self.acknowledged_s.append(time.monotonic())
            again = await self._answer(client, fresh)
            assert first["accepted"] + first["duplicates"] == _BATCH
            assert again == {"accepted": 0, "duplicates": _BATCH}, again
            await asyncio.sleep(_PAUSE_S)

    async def _answer(self, client: httpx.AsyncClient, chosen: dict[str, int]) -> dict[str, int]:
        entries = [
            {
                "measureName": "whoWins",
                "contextId": self.context,
                "measureValue": option,
                "visitorId": visitor,
            }
            for visitor, option in chosen.items()
        ]
        path = f"/responses/{self.account}/undefined/{self.program_id}"
        reply: dict[str, int] = await self._insist(client, path, {"responses": entries})
        return reply

    async def _insist(
        self, client: httpx.AsyncClient, path: str, body: dict[str, object]
    ) -> dict[str, str] | dict:
        """Send until it is taken."""
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                try:
                    reply = await client.post(path, json=body, headers=self.headers)
                except httpx.TransportError:
                    reply = None
                if reply is not None and reply.is_success:
                    return reply.json()
                if reply is not None and reply.status_code < 500 and reply.status_code not in (404, 429):
                    raise AssertionError(f"{reply.status_code} {reply.text}")
                await asyncio.sleep(_RETRY_S)

    async def _read(self, client: httpx.AsyncClient) -> None:
        while True:
            with suppress(httpx.HTTPError):
                self.seen.append(await self._total(client))
            await asyncio.sleep(_RETRY_S)

    async def _total(self, client: httpx.AsyncClient) -> int:
        query = {"programId": self.program_id, "contextId": self.context}
        reply = await client.get(f"/responses/{self.account}/whoWins/results", params=query)
        reply.raise_for_status()
        return int(reply.json()["total"])
