"""The simulated voters: each votes in every poll, half of them over HTTP and half over WebSocket.

One in ten changes its mind and answers again, which must not count: a visitor's first answer stands.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack

from broker.client import (
    Answer,
    AsyncClient,
    ClientError,
    Conflict,
    ConnectionFailed,
    Counted,
    Event,
    Program,
    Socket,
    Unavailable,
)
from broker.clock import Clock
from broker.concurrency.tasks import is_set_within
from broker.demo.figures import VoteFigures
from broker.demo.script import POLL

_LINES = 4  # connections that the voters over WebSocket share
_RECONNECT_S = 0.5
_IN_TIME = 0.8  # of the time for answers; who comes later may find the poll closed
_SECOND_THOUGHTS = 0.1

_Send = Callable[[Answer], Awaitable[Counted]]


class Voters:
    """Visitors of one program, who answer what its events ask."""

    def __init__(self, client: AsyncClient, program: Program, size: int, seed: int, clock: Clock) -> None:
        self._client = client
        self._program = program
        self._seed = seed
        self._clock = clock
        self._asked: asyncio.Queue[Event | None] = asyncio.Queue()  # a final has three polls
        self._over = asyncio.Event()
        self.size = size
        self.votes = VoteFigures()

    def hear(self, event: Event) -> None:
        """Take an event; one that asks something is answered."""
        if event.event == POLL:
            self._asked.put_nowait(event)

    def end(self) -> None:
        """Let nobody begin to answer any more."""
        self._over.set()
        self._asked.put_nowait(None)

    async def vote(self) -> None:
        """Answer what is asked until `end`, and wait then for what is under way."""
        async with AsyncExitStack() as stack:
            lines = [_Line(self._client, self._program.id) for _ in range(_LINES)]
            for line in lines:
                stack.push_async_callback(line.close)
            async with asyncio.TaskGroup() as group:
                while (poll := await self._asked.get()) is not None:
                    for number in range(self.size):
                        send = self._send if number % 2 else lines[number // 2 % _LINES].send
                        group.create_task(self._answer(poll, number, send), name="demo voter")

    async def _answer(self, poll: Event, number: int, send: _Send) -> None:
        measure, options = poll.metadata["measureName"], len(poll.metadata["options"])
        draw = random.Random(f"{self._seed} {poll.seq} {number}")  # noqa: S311 - a taste, not a secret
        left_s = (poll.metadata["closes"] - self._clock.now_ms()) / 1000
        if await is_set_within(self._over, draw.random() * _IN_TIME * left_s):
            return
        liked = min(draw.randrange(options), draw.randrange(options))
        answer = Answer(measure, poll.id, liked, f"voter-{number}")
        if not await self._send_vote(answer, send) or draw.random() >= _SECOND_THOUGHTS:
            return
        again = Answer(measure, poll.id, (liked + 1) % options, answer.visitor_id)
        await self._send_vote(again, send, is_repeat=True)

    async def _send_vote(self, answer: Answer, send: _Send, *, is_repeat: bool = False) -> bool:
        """Whether it was acknowledged."""
        self.votes.sent += 1
        try:
            await send(answer)
        except Conflict:
            self.votes.late += 1
        except ClientError as error:
            self.votes.faults.append(f"{answer.visitor_id} could not answer: {error}")
        else:
            # a first answer may come back as a duplicate: of a try whose acknowledgement got lost
            assert isinstance(answer.measure_value, int), "voters choose one option"
            self.votes.acknowledge(answer.context_id, answer.measure_value, is_repeat=is_repeat)
            return True
        return False

    async def _send(self, answer: Answer) -> Counted:
        return await self._client.responses.add(
            self._program.id, [answer], project_id=self._program.project_id
        )


class Results:
    """Collects what the channel sends; `told` has the latest votes of each option, by context."""

    def __init__(self, client: AsyncClient, program: Program) -> None:
        """The client's user may read the program's report."""
        self._client = client
        self._program = program
        self._moved = asyncio.Event()
        self.told: dict[str, dict[int, int]] = {}

    async def follow(self) -> None:
        """Follow the channel until cancelled."""
        while True:
            try:
                following = self._client.responses.follow(self._program.id, followed=self._read)
                async for result in following:
                    self._take(result.context_id or "", result.results)
            except (ConnectionFailed, Unavailable):
                await asyncio.sleep(_RECONNECT_S)

    async def wait_for(self, totals: Mapping[str, int]) -> None:
        """Wait until the channel has sent that many votes for each context."""
        while any(sum(self.told.get(context, {}).values()) < n for context, n in totals.items()):
            self._moved.clear()
            await self._moved.wait()

    async def _read(self) -> None:
        """Take what has changed while nothing was told."""
        report = await self._client.responses.get_report(
            self._program.id, project_id=self._program.project_id
        )
        for entry in report:
            self._take(entry.context_id, {option.measure_value: option.total for option in entry.options})

    def _take(self, context: str, counts: dict[int, int]) -> None:
        self.told[context] = counts
        self._moved.set()


class _Line:
    """A connection that several voters share, reopened when it is lost."""

    def __init__(self, client: AsyncClient, program_id: str) -> None:
        self._client = client
        self._program_id = program_id
        self._opening = asyncio.Lock()
        self._socket: Socket | None = None

    async def send(self, answer: Answer) -> Counted:
        """Answer, over as many connections as it takes: an answer counts once."""
        while True:
            socket: Socket | None = None
            try:
                socket = await self._open()
                return await socket.respond(
                    self._program_id,
                    answer.measure_name,
                    answer.context_id,
                    answer.measure_value,
                    visitor_id=answer.visitor_id,
                )
            except ConnectionFailed:
                if socket is self._socket:  # and not what another voter has opened since
                    await self.close()
            except Unavailable:
                pass
            await asyncio.sleep(_RECONNECT_S)

    async def close(self) -> None:
        """Close what is open."""
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()

    async def _open(self) -> Socket:
        async with self._opening:
            if self._socket is None:
                self._socket = await self._client.open_socket()
            return self._socket
