"""Connections between any two parts are cut in the middle of messages; nothing is lost or doubled."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import asyncpg
import orjson
import pytest

from broker.errors import BrokerError, Unavailable
from broker.owners.commands import Accepted
from broker.owners.commands import Publish as PublishCommand
from broker.owners.owner import Owner
from broker.owners.protocol import program_topic
from broker.owners.sessions import Follow, PollReply
from broker.settings import Settings
from broker.storage.migrations import migrate
from tests.adversity.judge import Publish, Push, Stored, judge, short_id
from tests.adversity.proxy import Opened, Proxy, open_proxy, tcp, unix
from tests.adversity.soak import PUSHES, STORED, Size, open_show
from tests.deployments.instance import Instance
from tests.owners.support import create_programs, ids, row

pytestmark = pytest.mark.anyio

SEED = 3
PATIENCE_S = 60.0


@pytest.fixture
async def echo() -> AsyncIterator[int]:
    """The port of a server that sends back what it gets."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(1000):
            writer.write(piece)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


async def ask(proxy: Proxy, message: bytes) -> Opened:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(message)
    return reader, writer


async def test_uncut_wire_carries_everything(echo: int) -> None:
    async with open_proxy(tcp(echo), random.Random(SEED)) as proxy:
        reader, writer = await ask(proxy, b"x" * 100_000)
        assert await reader.readexactly(100_000) == b"x" * 100_000
        writer.close()
        assert proxy.cuts == 0


async def test_wire_is_cut_after_its_bytes(echo: int) -> None:
    async with open_proxy(tcp(echo), random.Random(SEED), cut_after=(50, 51)) as proxy:
        reader, writer = await ask(proxy, b"x" * 49)
        assert await reader.readexactly(49) == b"x" * 49
        writer.write(b"xy")
        try:
            rest = await reader.read()
        except ConnectionResetError:
            rest = b""
        assert rest in (b"", b"x")
        assert proxy.cuts == 1
        writer.close()


async def test_stalled_wire_goes_on_where_it_was(echo: int) -> None:
    async with open_proxy(tcp(echo), random.Random(SEED)) as proxy:
        async with proxy.stalled():
            reader, writer = await ask(proxy, b"late")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(1), 0.1)
        assert await reader.readexactly(4) == b"late"
        writer.close()


@pytest.mark.postgres
async def test_owner_whose_database_is_cut_off_all_the_time(postgres_server: str, postgres_dsn: str) -> None:
    await migrate(postgres_dsn)
    await create_programs(postgres_dsn, ["p"])
    chance = random.Random(SEED)
    settings = Settings(owners=1, database_pool=4, statistics=False)
    # what says that a commit was made is lost more often than chance would have it
    async with open_proxy(
        unix(f"{postgres_server}/.s.PGSQL.5432"),
        chance,
        cut_after=(5_000, 60_000),
        lose=(b"COMMIT\0", b"SELECT 1\0"),
    ) as proxy:
        name = urlsplit(postgres_dsn).path
        owner = await Owner.start(
            settings, f"postgresql://broker@127.0.0.1:{proxy.port}{name}?sslmode=disable", 0
        )
        log: list[Push] = []
        watching = asyncio.create_task(watch(owner, log))
        try:
            logs = await asyncio.gather(*(produce(owner, by, 120) for by in range(4)))
            connection = await asyncpg.connect(postgres_dsn)
            stored = [
                Stored(seq, short_id(id_), *by) for seq, id_, *by in await connection.fetch(STORED, "p")
            ]
            pushes = [Push(seq, short_id(id_)) for seq, id_ in await connection.fetch(PUSHES, "p")]
            await connection.close()
            async with asyncio.timeout(PATIENCE_S):
                while len(log) < len(pushes):  # noqa: ASYNC110 - a poll brings them
                    await asyncio.sleep(0.05)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await owner.close()
        assert proxy.cuts > 5
    publishes = [publish for of_one in logs for publish in of_one]
    assert judge(publishes, stored, pushes, {"gateway": log}) == []
    assert len(stored) == sum(publish.size for publish in publishes)


async def produce(owner: Owner, by: int, count: int) -> list[Publish]:
    """Publish `count` times, sending again what is answered `Unavailable`."""
    log: list[Publish] = []
    first = 0
    for _ in range(count):
        size = 1 + first % 4
        rows = tuple(row(metadata={"by": by, "n": first + n}) for n in range(size))
        command = PublishCommand(ids.uuid7(), "demo", "p", rows, None)
        sent_s = time.monotonic()
        answer: object = None
        while not isinstance(answer, Accepted):
            assert answer is None or isinstance(answer, Unavailable), answer
            assert time.monotonic() < sent_s + PATIENCE_S
            (answer,) = await owner.submit([command], 5.0)
        events = [orjson.loads(event) for event in answer.events]
        seqs, known = [event["seq"] for event in events], [short_id(event["id"]) for event in events]
        log.append(Publish(by, first, size, sent_s, time.monotonic(), seqs, known))
        first += size
    return log


async def watch(owner: Owner, log: list[Push]) -> None:
    """Follow the program from its beginning, as a gateway does."""
    follow = Follow(1, program_topic("demo", "p"), None)
    while isinstance((await owner.open("gateway", [follow]))[0], BrokerError):
        continue
    ack = 0
    while True:
        answer = await owner.poll("gateway", ack, 1.0)
        if isinstance(answer, PollReply):
            ack = answer.number
            entries = [entry for batch in answer.batches for entry in batch.entries]
            log += [Push(entry.seq, short_id(orjson.loads(entry.params)["id"])) for entry in entries]


@pytest.mark.cluster
@pytest.mark.timeout(600)
async def test_producers_and_viewers_who_are_cut_off_all_the_time(instance: Instance) -> None:
    size = Size(producers=6, viewers=12, programs=3, events_per_s=600.0)
    async with open_show(instance, size, cut_after=(500, 50_000), seed=SEED) as show:
        async with asyncio.timeout(PATIENCE_S):
            while show.acknowledged < 2_000:  # noqa: ASYNC110 - the producers are other processes
                await asyncio.sleep(0.1)
        verdict = await show.close()
        assert verdict.findings == []
        assert verdict.reconnects > size.viewers
