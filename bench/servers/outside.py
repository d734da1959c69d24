"""A peer with a process of its own: started, fed over a connection of its protocol, ended."""

import asyncio
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.servers.command import Message, say_serving, serve_commands, wait_until_exactly

START_S = 20.0
STOP_S = 5.0


async def serve_outside(
    command: Sequence[str | Path],
    port: int,
    encode: Callable[[Message], bytes],
    *,
    version: str,
    greeting: bytes = b"",
    environment: dict[str, str] | None = None,
    workers: int = 0,
) -> None:
    """Start the peer, and publish to it what the bench commands.

    `encode` gives the bytes that publish a message. They are sent without waiting for the
    answers to earlier ones, and answers are read and dropped. The peer has `workers` processes of its own.
    """
    with running(command, environment) as process:
        reader, writer = await connect(port, process)
        writer.write(greeting)
        drop = asyncio.create_task(drop_all(reader))
        try:
            say_serving(version, [process.pid, *await find_workers(process.pid, workers)])

            async def publish(message: Message) -> None:
                writer.write(encode(message))
                await writer.drain()

            await serve_commands(publish, wait_until=wait_until_exactly)
        finally:
            drop.cancel()
            writer.close()


@contextmanager
def running(
    command: Sequence[str | Path], environment: dict[str, str] | None
) -> Iterator[subprocess.Popen[bytes]]:
    """The peer's process; what it prints goes to standard error, because standard output is for the bench."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, env=environment)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def connect(
    port: int, process: subprocess.Popen[bytes]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to the peer as soon as it listens."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            return await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.02)


async def drop_all(reader: asyncio.StreamReader) -> None:
    """Read what the peer answers until it closes."""
    while await reader.read(1 << 16):
        pass


async def find_workers(pid: int, count: int) -> list[int]:
    """The processes that a process has started, once there are `count`.

    Raises:
        TimeoutError: there are not so many in time.
    """
    async with asyncio.timeout(START_S):
        while True:
            found = list_children(pid)
            if len(found) >= count:
                return found
            await asyncio.sleep(0.02)


def list_children(pid: int) -> list[int]:
    """The processes that a process has started and that are alive."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def read_version(command: Sequence[str | Path], environment: dict[str, str] | None = None) -> str:
    """What a program says of its version: the first line on either output."""
    said = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return (said.stdout + said.stderr).strip().splitlines()[0]


def encode_post(path: str, body: bytes) -> bytes:
    """An HTTP request on a connection that is kept."""
    head = b"POST %b HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % (path.encode(), len(body)) + body
