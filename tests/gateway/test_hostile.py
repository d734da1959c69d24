"""Clients that mean harm: each is ended with the right code, costs bounded memory, and hurts nobody else."""

import asyncio
import os
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.attack.wire import frame
from tests.gateway.world import World

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

SETTINGS = {
    "ws_messages_per_s": 50,
    "ws_messages_burst": 200,
    "ws_subscriptions": 10,
    "ws_handshake_s": 1.0,
    "ws_lag_bytes": 256 << 10,
}

GROWTH_BYTES = 24 << 20
"""What an attack may add to the process: some messages of 1 MiB on their way, and the allocator's slack."""

HANDSHAKE = (
    b"GET /api/v1/ws HTTP/1.1\r\nHost: demo.localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def text(message: str) -> bytes:
    return frame(1, message.encode())


def closes(world: World) -> int:
    """Connections that the gateway has ended."""
    return sum(count for *_, count in world.gateway.stats()["closes"])


class Attacker:
    """A bare socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        """Send all of it, or as much as the server takes before it hangs up."""
        try:
            self.writer.write(data)
            async with asyncio.timeout(5):
                await self.writer.drain()
        except (ConnectionError, TimeoutError):
            pass

    async def rest(self) -> bytes:
        """Everything until the server has ended the connection."""
        data = b""
        try:
            async with asyncio.timeout(8):
                while part := await self.reader.read(1 << 16):
                    data = (data + part)[-(1 << 20) :]
        except ConnectionError:
            pass
        return data

    async def close_code(self) -> int:
        """The code of the close frame with which the server ends the connection."""
        data = await self.rest()
        at = max(data.rfind(bytes([0x88, length])) for length in range(2, 126))
        assert at >= 0, data[-200:]
        return int(struct.unpack(">H", data[at + 2 : at + 4])[0])


@asynccontextmanager
async def attack(world: World, *, handshake: bool = True) -> AsyncIterator[Attacker]:
    """A bare socket; in the end another client must still be served at once, and memory be bounded."""
    before = resident_bytes()
    witness = await world.join()
    reader, writer = await asyncio.open_connection("127.0.0.1", world.port, limit=1 << 20)
    try:
        if handshake:
            writer.write(HANDSHAKE)
            assert b"101" in await reader.readuntil(b"\r\n\r\n")
        yield Attacker(reader, writer)
        async with asyncio.timeout(2):
            assert await witness.call("servertime")
        assert await (await world.join()).call("servertime")
        assert resident_bytes() - before < GROWTH_BYTES
    finally:
        writer.close()


async def test_handshake_that_drips_is_ended(world: World) -> None:
    async with attack(world, handshake=False) as attacker:
        for byte in HANDSHAKE[:30]:
            await attacker.send(bytes([byte]))
            await asyncio.sleep(0.05)
        await attacker.rest()


@pytest.mark.parametrize("header", [b"X-Long: " + b"a" * 200_000, b"X: y\r\n" * 20_000])
async def test_huge_header_is_refused(world: World, header: bytes) -> None:
    async with attack(world, handshake=False) as attacker:
        await attacker.send(HANDSHAKE[:-2] + header + b"\r\n\r\n")
        answer = await attacker.rest()
        assert answer == b"" or answer.split()[1] in {b"400", b"413", b"431"}


async def test_something_else_than_http_is_refused(world: World) -> None:
    async with attack(world, handshake=False) as attacker:
        await attacker.send(b"\x16\x03\x01\x02\x00\x01\x00" + bytes(300) + b"\r\n\r\n")
        answer = await attacker.rest()
        assert answer == b"" or answer.split()[1] == b"400"


async def test_unmasked_frame_closes_1002(world: World) -> None:
    async with attack(world) as attacker:
        await attacker.send(frame(1, b"{}", masked=False))
        assert await attacker.close_code() == 1002


@pytest.mark.parametrize(
    "bad",
    [
        frame(3, b""),  # a reserved opcode
        frame(9, b"x" * 126),  # a control frame that is too long
        frame(9, b"", final=False),  # a control frame in fragments
        frame(0, b"x"),  # a continuation of nothing
        b"\xf1\x80\0\0\0\0",  # reserved bits
        frame(8, b"\x03"),  # a close code of one byte
    ],
)
async def test_broken_frame_closes_1002(world: World, bad: bytes) -> None:
    async with attack(world) as attacker:
        await attacker.send(bad)
        assert await attacker.close_code() == 1002


async def test_announced_length_beyond_the_limit_closes_1009_at_once(world: World) -> None:
    async with attack(world) as attacker:
        await attacker.send(b"\x81\xff" + struct.pack(">Q", 1 << 40) + b"\0\0\0\0")
        assert await attacker.close_code() == 1009


async def test_endless_fragments_close_1009(world: World) -> None:
    async with attack(world) as attacker:
        await attacker.send(frame(1, b"x" * 60_000, final=False))
        for _ in range(30):
            await attacker.send(frame(0, b"x" * 60_000, final=False))
        assert await attacker.close_code() == 1009


async def test_ping_flood_is_bounded(world: World) -> None:
    async with attack(world) as attacker:
        for _ in range(200):
            await attacker.send(frame(9, b"x" * 125) * 1_000)
            if attacker.writer.is_closing():
                break


async def test_message_flood_is_ended(world: World) -> None:
    async with attack(world) as attacker:
        flood = text('{"jsonrpc":"2.0","id":1,"method":"servertime"}') * 1_000
        for _ in range(100):
            await attacker.send(flood)
        assert await attacker.close_code() in {1008, 4008}


@pytest.mark.parametrize(
    ("method", "offered_bytes"), [(b"GET", 128 << 20), (b"GET", 256 << 20), (b"POST", 128 << 20)]
)
async def test_flood_behind_a_refusal_is_not_read(world: World, method: bytes, offered_bytes: int) -> None:
    program = await world.program()
    async with attack(world, handshake=False) as attacker:
        path = f"/api/v1/programs/{program}/events/stream".encode()
        attacker.writer.write(method + b" " + path + b" HTTP/1.1\r\nHost: demo.localhost\r\n\r\n")
        await attacker.reader.readuntil(b"\r\n\r\n")
        taken = 0
        while taken < offered_bytes and not attacker.writer.is_closing():
            await attacker.send(bytes(1 << 18))
            taken += 1 << 18
        assert taken < 64 << 20  # with what the kernels of both sides hold


async def test_million_subscriptions_are_refused(world: World) -> None:
    async with attack(world) as attacker:
        for start in range(0, 20_000, 500):
            await attacker.send(
                b"".join(
                    text(f'{{"jsonrpc":"2.0","id":1,"method":"subscribe","params":{{"programId":"p{n}"}}}}')
                    for n in range(start, start + 500)
                )
            )
        assert await attacker.close_code() in {1008, 4008}
        assert world.gateway.stats()["logs"] <= 10


@pytest.mark.parametrize("opening", ["[", '{"a":'])
async def test_deeply_nested_json_is_a_parse_error(world: World, opening: str) -> None:
    async with attack(world) as attacker:
        await attacker.send(text(opening * 100_000))
        answer = await attacker.reader.readuntil(b"}}")
        assert b"-32700" in answer or b"-32600" in answer


async def test_deeply_nested_params_are_refused(world: World) -> None:
    async with attack(world) as attacker:
        nested = '{"a":' * 100_000 + "1" + "}" * 100_000
        await attacker.send(text(f'{{"jsonrpc":"2.0","id":1,"method":"getProgram","params":{nested}}}'))
        answer = await attacker.reader.readuntil(b"}")
        assert b"-32700" in answer or b"-32602" in answer


async def test_batch_bomb_is_refused(world: World) -> None:
    async with attack(world) as attacker:
        await attacker.send(text("[" + ",".join(["1"] * 400_000) + "]"))
        answer = await attacker.rest() if attacker.reader.at_eof() else await attacker.reader.read(1 << 16)
        assert answer


async def test_answers_that_nobody_reads_are_bounded(world: World) -> None:
    program = await world.program()
    await world.publish(program, 500, bytes_each=1_000)
    async with attack(world) as attacker:
        await asyncio.sleep(0.5)
        target = f'"programId":"{program}"'
        follow = f'{{"jsonrpc":"2.0","id":1,"method":"subscribe","params":{{{target},"history":500}}}}'
        leave = f'{{"jsonrpc":"2.0","id":1,"method":"unsubscribe","params":{{{target}}}}}'
        before = closes(world)
        await attacker.send((text(follow) + text(leave)) * 90)
        async with asyncio.timeout(8):
            # Who reads before that, and fast enough, is served.
            while closes(world) == before:  # noqa: ASYNC110 - it tells by nothing else
                await asyncio.sleep(0.01)
        assert await attacker.close_code() in {1008, 4008}


async def test_many_who_never_finish_the_handshake_are_ended(world: World) -> None:
    async with attack(world, handshake=False):
        sockets = [await asyncio.open_connection("127.0.0.1", world.port) for _ in range(200)]
        for _, writer in sockets:
            writer.write(HANDSHAKE[:40])
        async with asyncio.timeout(6):
            await asyncio.gather(*(reader.read() for reader, _ in sockets), return_exceptions=True)
        for _, writer in sockets:
            writer.close()
