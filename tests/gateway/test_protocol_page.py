"""The transcripts of docs/protocol.md happen as they are written.

They are replayed from the top of the page to its end against one gateway. What differs at each run (ids,
epochs, times, tokens) differs in the same way everywhere: what the page calls by one name must be one thing.
"""

import asyncio
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import orjson
import pytest
from websockets.asyncio.client import connect

from broker.resources.notifications import CLOSES, NOTIFICATIONS, STREAM_ENDS
from tests.gateway.described import faults_of_answer, faults_of_call, faults_of_notification
from tests.gateway.streams import Stream, StreamEvent
from tests.gateway.world import WAIT_S, World

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
STREAMS_PAGE = (Path(__file__).parents[2] / "docs" / "streams.md").read_text()
STEPS = [
    line for block in re.findall(r"```transcript\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()
]
# Texts and numbers that another run has others of.
TEXTS = {"epoch", "id", "createdTime", "access_token", "contextId", "url", "streamUrl"}
NUMBERS = {"timestamp", "timecode", "serverTime", "connections", "afterMs"}


class Replay:
    """One run of the page."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.names: dict[str, str] = {}  # what the page writes → what it is in this run
        self.socket: Any = None
        self.stream: Stream | None = None
        self.lines: dict[str, str] = {}  # of an event of the stream, as far as the page has come
        self.answer: tuple[int, Any] = (0, None)
        self.called: dict[int, str] = {}

    async def step(self, line: str) -> None:
        if line.startswith("connect"):
            await self.close()
            query, port = line.removeprefix("connect").strip(), self.world.port
            url = f"ws://demo.localhost:{port}/api/v1/ws{query}"
            self.socket = await connect(url, host="127.0.0.1", port=port, proxy=None)
        elif line.startswith("producer "):
            await self.request("producer", line.removeprefix("producer "))
        elif line.startswith("→ {"):
            await self.call(orjson.loads(self.filled(line[2:])))
        elif line.startswith("→ ") and "/events/stream" in line:
            await self.follow(line[2:])
        elif line.startswith("→ "):
            await self.request(None, line[2:])
        elif found := re.match(r"← (id|event|data|retry): (.*)", line):
            self.lines[found[1]] = found[2]
        elif line == "←":
            await self.check_event(self.lines)
            self.lines = {}
        elif line.startswith(("← {", "← [")):
            message = orjson.loads(await self.receive())
            self.check(orjson.loads(line[2:]), message, "")
            for each in message if isinstance(message, list) else [message]:
                told = "method" in each
                answered = self.called.get(each.get("id", 0), "")
                assert (faults_of_notification(each) if told else faults_of_answer(answered, each)) == []
        else:
            status, _, body = line.removeprefix("← ").partition(" ")
            assert self.answer[0] == int(status)
            self.check(orjson.loads(body or "null"), self.answer[1], "")

    async def call(self, message: dict[str, Any]) -> None:
        self.called[message["id"]] = message["method"]
        is_faultless = "sinse" not in message.get("params", {}) and message["method"] != "shout"
        assert not is_faultless or faults_of_call(message) == []
        await self.socket.send(orjson.dumps(message).decode())

    async def follow(self, line: str) -> None:
        await self.close()
        _, path, *header = line.split(" ", 2)
        name, _, written = "".join(header).partition(": ")
        headers = {name: self.filled_position(written)} if name else {}
        target = urlsplit(path)
        self.stream = await Stream.open(
            self.world.port,
            target.path.split("/")[-3],
            query=dict(parse_qsl(target.query)),
            headers=headers,
        )
        self.answer = self.stream.status, None

    def filled_position(self, written: str) -> str:
        return ":".join(self.names.get(part, part) for part in written.split(":"))

    async def check_event(self, lines: dict[str, str]) -> None:
        assert self.stream is not None
        event: StreamEvent | None = await self.stream.find_next()
        assert event is not None
        assert event.name == lines["event"]
        self.check(orjson.loads(lines["data"]), event.data, "")
        assert (event.retry_ms is None) is ("retry" not in lines)
        written = lines.get("id")
        assert event.id == (None if written is None else self.filled_position(written))

    async def receive(self) -> str:
        async with asyncio.timeout(WAIT_S):
            return str(await self.socket.recv())

    async def request(self, role: str | None, line: str) -> None:
        method, path, *body = self.filled(line).split(" ", 2)
        sent = {"json": orjson.loads(body[0])} if body else {}
        async with self.world.product.door(role) as door:
            answer = await door.request(method, path.removeprefix("/api/v1"), **sent)  # type: ignore[arg-type]
        assert role is None or answer.is_success, answer.text
        self.answer = answer.status_code, orjson.loads(answer.content or b"null")

    def filled(self, line: str) -> str:
        for name, meant in self.names.items():
            line = line.replace(f'"{name}"', f'"{meant}"').replace(f"/{name}", f"/{meant}")
        return line

    def check(self, written: Any, came: Any, place: str) -> None:
        """That what came is what is written, but for what differs at each run."""
        assert type(written) is type(came), place
        name = place.rpartition(".")[2]
        if isinstance(written, dict):
            assert written.keys() == came.keys(), place
            for key, value in written.items():
                self.check(value, came[key], f"{place}.{key}")
        elif isinstance(written, list):
            assert len(written) == len(came), place
            for one, other in zip(written, came, strict=True):
                self.check(one, other, place)
        elif isinstance(written, str) and name in TEXTS:
            assert self.names.setdefault(written, came) == came, place
        elif not (isinstance(written, int) and name in NUMBERS):
            assert written == came, place

    async def close(self) -> None:
        if self.socket is not None:
            await self.socket.close()
        if self.stream is not None:
            await self.stream.close()


async def test_the_transcripts_happen_as_they_are_written(world: World) -> None:
    admin = await world.admin()
    await admin.call("createProject", id="football", name="Football")
    await admin.call("admin/createProgram", id="final-2026", name="The final")
    producer = await world.join("producer")
    profile = await producer.call("getCurrentUser")
    await admin.call("updateUser", userId=profile["id"], projectIds=["own", "football"])
    replay = Replay(world)
    try:
        for line in STEPS:
            try:
                await replay.step(line)
            except Exception as error:
                error.add_note(f"at the line: {line}")
                raise
    finally:
        await replay.close()
    assert len(STEPS) > 40


def test_the_page_says_what_the_document_says() -> None:
    """Codes, limits and notifications that the page names are those of the tables."""
    told = {}
    for codes, then in re.findall(r"^\| ([\d, ]+)(?: or no close frame)? \| (.*) \|$", PAGE, re.MULTILINE):
        told |= {int(code): then.startswith("reconnect and") for code in re.findall(r"\d{4}", codes)}
    assert told == {close.code: close.comes_back for close in CLOSES}
    endings = re.findall(r"^\| ([\d, ]+) \| (`.*) \| (.*) \|$", STREAMS_PAGE, re.MULTILINE)
    codes = [(int(code), reasons, then) for codes, reasons, then in endings for code in codes.split(",")]
    ends = [close for close in (*STREAM_ENDS, *CLOSES) if close.reasons]
    for close in ends:
        said = [reasons for code, reasons, _ in codes if code == close.code]
        assert [
            reason for reason in close.reasons if not any(f"`{reason}`" in reasons for reasons in said)
        ] == []
    assert {code for code, _, _ in codes} == {close.code for close in ends}
    assert [
        each for each in NOTIFICATIONS if not (f"`{each.method}`" in PAGE or f'"{each.method}"' in PAGE)
    ] == []
