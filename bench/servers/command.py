"""What the contenders' programs share: the `publish` command, the message, and the first line."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

Wait = Callable[[float], Awaitable[None]]

ENVELOPE = b'{"jsonrpc":"2.0","method":"event","params":%b}'


@dataclass(frozen=True, slots=True)
class Publish:
    """`publish COUNT BYTES INTERVAL_US`: messages, bytes of each, pause between them (0: none)."""

    count: int
    size_bytes: int
    interval_s: float

    @classmethod
    def parse(cls, line: str) -> "Publish":
        """Read a command line; ValueError for anything else."""
        name, count, size_bytes, interval_us = line.split()
        if name != "publish":
            raise ValueError(f"unknown command {line!r}")
        return cls(int(count), int(size_bytes), int(interval_us) / 1e6)


@dataclass(frozen=True, slots=True)
class Message:
    """What is published next, and when: nanoseconds of the monotonic clock.

    A message of a round with pauses was due at that time, however late the server came to it.
    """

    seq: int
    size_bytes: int
    sent_ns: int


def build_params(message: Message, envelope: bytes = ENVELOPE) -> bytes:
    """A notification's params, filled up so that the whole message with its envelope has its size."""
    fields = b'{"seq":%d,"epoch":"bench","programId":"bench","sent":%d,"filler":"' % (
        message.seq,
        message.sent_ns,
    )
    filler = message.size_bytes - (len(envelope) - 2) - len(fields) - 2
    return fields + b"x" * filler + b'"}'


def build_message(message: Message) -> bytes:
    """A whole notification."""
    return ENVELOPE % build_params(message)


def say_serving(version: str, pids: Sequence[int] = ()) -> None:
    """Tell the bench that the port is open, what serves it, and in which processes if not in this one."""
    print(json.dumps({"version": version, "pids": list(pids)}), flush=True)


async def turn_until(due: float) -> None:
    """Wait for a moment of the monotonic clock while the event loop goes on; it is late by up to 1 ms."""
    await asyncio.sleep(max(0.0, due - time.monotonic()))


async def wait_until_exactly(due: float) -> None:
    """Wait for a moment of the monotonic clock; for its last two milliseconds nothing else runs here."""
    await asyncio.sleep(max(0.0, due - time.monotonic() - 0.002))
    time.sleep(max(0.0, due - time.monotonic()))  # noqa: ASYNC251 - the event loop counts in milliseconds


async def serve_commands(
    publish: Callable[[Message], Awaitable[None]], messages_a_turn: int = 1, wait_until: Wait = turn_until
) -> None:
    """Run `publish` for each message of each command until the input ends.

    Answers each command with a line of JSON. After `messages_a_turn` messages without a pause between them
    the event loop gets its turn. A thread that serves no viewers waits with `wait_until_exactly`.
    """
    seq = 0
    async for line in read_lines():
        command = Publish.parse(line)
        began = time.monotonic()
        for turn in range(command.count):
            due = began + turn * command.interval_s
            if command.interval_s:
                await wait_until(due)
            elif turn % messages_a_turn == 0:
                await asyncio.sleep(0)
            seq += 1
            sent_ns = int(due * 1e9) if command.interval_s else time.monotonic_ns()
            await publish(Message(seq, command.size_bytes, sent_ns))
        print(json.dumps({"published": command.count, "seconds": time.monotonic() - began}), flush=True)


async def read_lines() -> AsyncIterator[str]:
    """The lines of standard input, which is a pipe."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield line.decode()
