"""Producers in one process: over HTTP and WebSocket, single events and batches, retrying under their keys.

A producer numbers its events, sends one publish after the other, and writes down what it was told. A publish
that fails is sent again under the same idempotency key, soon and without end; now and then one is given up
instead, so that there are publishes whose outcome nobody knows. Some producers correct an event now and then.

Run as a program with a JSON object as its argument; it goes on until a line comes on standard input.
"""

import asyncio
import random
import secrets
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

import httpx
import orjson
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake, WebSocketException

from tests.adversity.judge import Publish, short_id

_SIZES = (1, 1, 5, 20)  # events of a publish; and the largest batch
_CORRECTS = 0.02  # the part of publishes after which an event is corrected
_TRY_S = 15.0  # the product itself tries for ten
_PATIENCE_S = 180.0
_PAUSE_S = (0.02, 0.2)  # between two tries
_TOLD = 200  # characters of an answer that asks to try again
PASSING = (429, 502, 503, 504)
"""The statuses of which a client may think that trying again helps."""


class Failed(Exception):
    """No answer, or one that asks to try again."""


class Refused(Exception):
    """An answer that no producer should have had."""


class Door(Protocol):
    """A way into the product."""

    async def publish(self, program_id: str, events: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
        """Publish and return the events as acknowledged. Raises Failed, Refused."""

    async def close(self) -> None:
        """Let go of the connection."""


class HttpDoor:
    """REST over one connection."""

    def __init__(self, url: str, token: dict[str, str], passing: Sequence[int]) -> None:
        self._passing = passing
        self._client = httpx.AsyncClient(base_url=url, headers=token, timeout=_TRY_S)

    async def publish(self, program_id: str, events: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
        body = events[0] if len(events) == 1 else {"events": events}
        answer = await self._ask("POST", f"/programs/{program_id}/events", body, {"Idempotency-Key": key})
        return [answer] if len(events) == 1 else answer["events"]

    async def correct(self, program_id: str, event: dict[str, Any]) -> None:
        """Change an event's name."""
        body = {"event": "Count#corrected", "metadata": event["metadata"]}
        await self._ask("PUT", f"/programs/{program_id}/events/{event['id']}", body, {})

    async def close(self) -> None:
        await self._client.aclose()

    async def _ask(self, method: str, path: str, body: Any, headers: dict[str, str]) -> Any:
        headers = headers | {"Content-Type": "application/json"}
        try:
            reply = await self._client.request(method, path, content=orjson.dumps(body), headers=headers)
        except httpx.TransportError as error:
            raise Failed(type(error).__name__) from error
        if reply.status_code in self._passing:
            raise Failed(f"{reply.status_code} {reply.text[:_TOLD]}")
        if not reply.is_success:
            raise Refused(f"{reply.status_code} {reply.text[:200]}")
        return reply.json()


class SocketDoor:
    """JSON-RPC over one WebSocket connection, opened anew when it ends."""

    def __init__(self, port: int, token: dict[str, str]) -> None:
        self._url = f"ws://127.0.0.1:{port}/api/v1/ws"
        self._port = port
        self._token = token
        self._socket: ClientConnection | None = None
        self._number = 0

    async def publish(self, program_id: str, events: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
        params = {"programId": program_id, "idempotencyKey": key}
        answer = await self._call(params | (events[0] if len(events) == 1 else {"events": events}))
        return [answer] if len(events) == 1 else answer["events"]

    async def close(self) -> None:
        if self._socket is not None:
            self._socket.transport.abort()
            self._socket = None

    async def _call(self, params: dict[str, Any]) -> Any:
        self._number += 1
        message = {"jsonrpc": "2.0", "id": self._number, "method": "producer", "params": params}
        try:
            async with asyncio.timeout(_TRY_S):
                if self._socket is None:
                    self._socket = await connect(
                        self._url, additional_headers=self._token, proxy=None, compression=None
                    )
                await self._socket.send(orjson.dumps(message), text=True)
                while True:
                    answer = orjson.loads(await self._socket.recv())
                    if answer.get("id") == self._number:
                        break
        except (OSError, TimeoutError, WebSocketException, InvalidHandshake) as error:
            await self.close()
            raise Failed(type(error).__name__) from error
        if "result" in answer:
            return answer["result"]
        if answer["error"]["code"] in PASSING:
            raise Failed(str(answer["error"]["code"]))
        raise Refused(str(answer["error"])[:200])


@dataclass
class Tally:
    """What all producers of the process have done."""

    acknowledged: int = 0
    failures: int = 0
    given_up: int = 0
    given_up_s: float = 0.0
    last_s: dict[str, float] = field(default_factory=dict)
    causes: dict[str, int] = field(default_factory=dict)  # of failures, each with its door
    notes: list[str] = field(default_factory=list)

    def note_failure(self, door: Door, cause: Failed) -> None:
        """Count a try that was not answered, or answered by a wish for another."""
        self.failures += 1
        name = f"{type(door).__name__}: {cause}"
        self.causes[name] = self.causes.get(name, 0) + 1

    def note(self, text: str) -> None:
        """Keep something that should not have been."""
        if len(self.notes) < 20:
            self.notes.append(text)


@dataclass(frozen=True)
class Habits:
    """How a producer behaves.

    Attributes:
        events_per_s: at most; who is held up does not make up for it.
        largest_batch: in events; most publishes are smaller.
        gives_up: the part of failed publishes that is not sent again.
    """

    events_per_s: float
    largest_batch: int
    gives_up: float


class Producer:
    """One producer of one program."""

    def __init__(
        self, by: int, program_id: str, door: Door, tally: Tally, log: IO[bytes], habits: Habits
    ) -> None:
        self._by = by
        self._program_id = program_id
        self._door = door
        self._tally = tally
        self._log = log
        self._habits = habits
        self._sizes = (*_SIZES, habits.largest_batch)
        self._number = 0
        self._random = random.Random(by)

    async def play(self, stop: asyncio.Event) -> None:
        """Publish until `stop`."""
        while not stop.is_set():
            size = self._random.choice(self._sizes)
            began_s = time.monotonic()
            event = await self._publish(size)
            if event is not None and self._random.random() < _CORRECTS:
                await self._correct(event)
            rest_s = began_s + size / self._habits.events_per_s - time.monotonic()
            if rest_s > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(rest_s):
                        await stop.wait()
        await self._door.close()

    async def _publish(self, size: int) -> dict[str, Any] | None:
        """Publish `size` events; returns the last one when it was acknowledged."""
        first, self._number = self._number, self._number + size
        events = [{"event": "Count#up", "metadata": {"by": self._by, "n": first + n}} for n in range(size)]
        key, sent_s = secrets.token_hex(12), time.monotonic()
        answer: list[dict[str, Any]] | None = None
        while answer is None and time.monotonic() < sent_s + _PATIENCE_S:
            try:
                answer = await self._door.publish(self._program_id, events, key)
            except Failed as error:
                self._tally.note_failure(self._door, error)
                if self._random.random() < self._habits.gives_up:
                    break
                await asyncio.sleep(self._random.uniform(*_PAUSE_S))
            except Refused as error:
                self._tally.note(f"producer {self._by} was refused: {error}")
                await asyncio.sleep(_PAUSE_S[1])
        self._write(first, size, sent_s, answer)
        return answer[-1] if answer else None

    def _write(self, first: int, size: int, sent_s: float, answer: list[dict[str, Any]] | None) -> None:
        answered_s = None if answer is None else time.monotonic()
        if answered_s is None:
            self._tally.given_up += 1
            self._tally.given_up_s = time.monotonic()
        else:
            self._tally.acknowledged += size
            self._tally.last_s[self._program_id] = answered_s
        seqs = [event["seq"] for event in answer or ()]
        ids = [short_id(event["id"]) for event in answer or ()]
        publish = Publish(self._by, first, size, sent_s, answered_s, seqs, ids)
        self._log.write(orjson.dumps([self._program_id, *publish]) + b"\n")

    async def _correct(self, event: dict[str, Any]) -> None:
        if not isinstance(self._door, HttpDoor):
            return
        deadline_s = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline_s:
            try:
                await self._door.correct(self._program_id, event)
            except Failed as error:
                self._tally.note_failure(self._door, error)
                await asyncio.sleep(_PAUSE_S[1])
            except Refused as error:
                self._tally.note(f"producer {self._by} could not correct: {error}")
                return
            else:
                return


def read_log(path: Path) -> list[tuple[str, Publish]]:
    """What the producers of one process wrote: publishes with their programs."""
    return [(program, Publish(*rest)) for program, *rest in map(orjson.loads, path.read_bytes().splitlines())]


async def _play(spec: dict[str, Any]) -> None:
    stop, tally = asyncio.Event(), Tally()
    rate = spec["events_per_s"] / spec["producers"]
    habits = Habits(rate, spec["largest_batch"], spec["gives_up"])
    with (Path(spec["directory"]) / "producers.log").open("wb") as log:
        tasks = []
        for by in range(spec["producers"]):
            program_id = spec["programs"][by % len(spec["programs"])]
            # by turns of whole rounds, so that every program has producers of both kinds
            over_http = (by // len(spec["programs"])) % 2 == 0
            door: Door = (
                HttpDoor(f"{spec['url']}/api/v1", spec["token"], spec["passing"])
                if over_http
                else SocketDoor(spec["ws_port"], spec["token"])
            )
            tasks.append(asyncio.create_task(Producer(by, program_id, door, tally, log, habits).play(stop)))
        line = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
        while not all(task.done() for task in tasks):
            await asyncio.wait([line, *tasks], timeout=0.2, return_when=asyncio.FIRST_COMPLETED)
            if line.done():
                stop.set()
                await asyncio.wait(tasks, timeout=0.2)
            _say(tally)
        await asyncio.gather(*tasks)


def _say(tally: Tally) -> None:
    sys.stdout.buffer.write(orjson.dumps(tally) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    asyncio.run(_play(orjson.loads(sys.argv[1])))
