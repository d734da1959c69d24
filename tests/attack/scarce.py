"""What somebody may try to take all of: connections to the database, threads, memory, decoders, time."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from secrets import token_hex
from urllib.parse import quote

import asyncpg
import orjson

from broker.storage.embedded.server import EmbeddedPostgres
from tests.attack.attack import MIB, Attack
from tests.attack.target import BULK, HOST, OTHER_HOST, POLLED, PROJECT, WITNESSED, Target
from tests.attack.wire import Caller, Connection, Reply, request_of
from tests.deployments.instance import PASSWORD
from tests.owners.support import holding

_VOTES = f"/responses/demo/{PROJECT}/{POLLED}"
_BURST = 2_000  # votes of one address
_BODY = b'{"metadata":"' + b"x" * (MIB - 1_000)
# Not pg_stat_activity, which stays as it is within a transaction.
_WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"
_HALF = 4  # of the connections of one process
_PATIENCE_S = 30.0
_READING = 4  # connections; as many lists at a time as one address may read in a replica, or fewer
_REPLICAS = 8  # at most
_START_S = 60.0  # for an image replica


def _slow_table(target: Target, table: str) -> AbstractAsyncContextManager[asyncpg.Connection]:
    """Whatever reads a table waits meanwhile."""
    dsn = EmbeddedPostgres(target.instance.data_dir / "postgres").dsn
    return holding(dsn, f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")


def _elsewhere(caller: Caller) -> Caller:
    first, rest = caller.source.rsplit(".", 1)
    return replace(caller, source=f"{first}.{1 + int(rest) % 250}")


async def _log_in(caller: Caller, username: str, host: str) -> int:
    form = {"grant_type": "password", "client_id": "Test", "username": username, "password": PASSWORD}
    return (await caller.ask("POST", "/token", orjson.dumps(form), host=host, wait_s=_PATIENCE_S)).status


@asynccontextmanager
async def _requests() -> AsyncIterator["list[asyncio.Task[Reply]]"]:
    """Those that are begun in the block have ended after it."""
    tasks: list[asyncio.Task[Reply]] = []
    try:
        yield tasks
    finally:
        await asyncio.gather(*tasks)


async def _reports(caller: Caller, size: int) -> None:
    """Reports that take long; others log in and publish while all of them are read."""
    names = token_hex(4)  # that no attack before has had put in a cache
    async with _requests() as reading, _slow_table(caller.target, "answer_polls") as database:
        for number in range(size):
            report = caller.ask("GET", f"/responses/demo/{names}-{number}/results")
            reading.append(asyncio.create_task(report))
        async with asyncio.timeout(_PATIENCE_S):
            while await database.fetchval(_WAITING) < _HALF:
                ended = [task.result() for task in reading if task.done()]
                assert not ended, f"a report did not wait: {ended}"
        honest = _elsewhere(caller)
        for _ in range(5):
            status = await _log_in(honest, "rival", OTHER_HOST)
            assert status == 200, f"a log-in beside {size} reports: {status}"
        await _publish(honest, b'{"event":"Clock#tick","metadata":{}}', f"{size} reports")
    for task in reading:
        task.result().require(200, 503)


async def _publish(honest: Caller, event: bytes, beside: str) -> None:
    """Publish, which must work."""
    token, path = honest.target.tokens["producer"], f"/programs/{WITNESSED}/events"
    reply = await honest.ask("POST", path, event, token=token, wait_s=_PATIENCE_S)
    assert reply.status == 201, f"a publish beside {beside}: {reply}"


async def _wrong_passwords(caller: Caller, size: int) -> None:
    """Wrong passwords of one address, of many names at once; log-ins from another one go between them."""
    form = b'{"grant_type":"password","client_id":"Test","username":"none%d","password":"no"}'
    async with _requests() as wrong:
        wrong += [asyncio.create_task(caller.ask("POST", "/token", form % number)) for number in range(size)]
        await asyncio.wait(wrong, return_when=asyncio.FIRST_COMPLETED)
        honest = _elsewhere(caller)
        for username, host in (("producer", HOST), ("rival", OTHER_HOST)):
            status = await _log_in(honest, username, host)
            assert status == 200, f"a log-in beside {size} wrong ones: {status}"
    for task in wrong:
        task.result().require(401, 429, 503)


async def _held_bodies(caller: Caller, size: int) -> None:
    """Long bodies of many addresses that stop before their end; a publish gets in beside them."""
    head = request_of("POST", "/servertime", b"x" * MIB).removesuffix(b"x" * MIB)
    async with AsyncExitStack() as stack:
        held: list[Connection] = []
        for number in range(size):
            one = replace(caller, source=f"{caller.source.rsplit('.', 1)[0]}.{1 + number // 20 % 250}")
            connection = await stack.enter_async_context(one.connected())
            if await connection.send(head + _BODY, 20):
                held.append(connection)
        event = orjson.dumps({"event": "Clock#tick", "metadata": {"text": "x" * 1_000}})
        await _publish(_elsewhere(caller), event, f"{size} bodies")
        replies = await asyncio.gather(*(connection.reply(2) for connection in held))
        refused = [reply for reply in replies if reply.status]
        assert refused, f"all of {size} bodies are held"
        for reply in refused:
            reply.require(503)
            assert reply.headers["retry-after"] == "1"


async def _votes_with_keys(caller: Caller, size: int) -> None:
    """Votes over the rate, each with an idempotency key; another address votes."""
    vote = {"measureName": "who", "contextId": caller.target.event_id, "measureValue": 0}
    batch = [vote | {"visitorId": f"over-{number}"} for number in range(1_000)]
    for _ in range(_BURST // len(batch)):
        body = orjson.dumps({"responses": batch})
        (await caller.ask("POST", _VOTES, body)).require(202, 429)
    body = orjson.dumps({"responses": batch})
    refused = 0
    while refused < size:
        key = [("Idempotency-Key", f"{token_hex(8)}")]
        reply = (await caller.ask("POST", _VOTES, body, headers=key)).require(202, 429)
        refused += reply.status == 429  # between two of them a slow machine lets enough time pass for a batch
    body = orjson.dumps({"responses": [vote | {"visitorId": "honest"}]})
    (await _elsewhere(caller).ask("POST", _VOTES, body)).require(202)


async def _ranges_by_creation(caller: Caller, size: int) -> None:
    """Lists that find nothing, for which all events of a program are read; another address gets its own."""
    path = f"/programs/{BULK}/events?includeCreated=true&from=-2&to=-1"
    statuses = Counter[int]()
    began_s = time.monotonic()

    async def ask(numbers: range) -> None:
        for _ in numbers:
            reply = await caller.ask("GET", path, wait_s=_PATIENCE_S)
            statuses[reply.require(200, 429).status] += 1

    await asyncio.gather(*(ask(range(first, size, _READING)) for first in range(_READING)))
    most = _REPLICAS * (100 + 5 * (time.monotonic() - began_s))  # so many of one address in each replica
    assert statuses[200] <= most, f"{statuses[200]} of {size} were read"
    honest = await _elsewhere(caller).ask("GET", path, wait_s=_PATIENCE_S)
    assert honest.status == 200, f"a list after {size} of them: {honest}"


async def _costly_images(caller: Caller, size: int) -> None:
    """Images that each keep a decoder for a while; another address gets one in its turn, not after them."""
    image_server, name = caller.target.image_server, token_hex(4)

    def request(options: str, path: str) -> bytes:
        url = quote(image_server.url(f"{path}?{name}"), safe="")
        head = f"GET /api/v2/imgproxy/demo/{options}?url={url} HTTP/1.1\r\nHost: {HOST}\r\n"
        return f"{head}Connection: close\r\n\r\n".encode()

    # The first one starts a replica.
    (await caller.send(request("w=50", "/a.png"), _START_S)).require(200)
    async with _requests() as costly:
        costly += [
            asyncio.create_task(caller.send(request("f=gif", f"/costly{number}.jpg"), _PATIENCE_S * size))
            for number in range(size)
        ]
        await asyncio.wait(costly, return_when=asyncio.FIRST_COMPLETED)
        before = sum(task.done() for task in costly)
        honest = await _elsewhere(caller).send(request("w=100", "/b.png"), _START_S)
        overtaken = sum(task.done() for task in costly) - before
        assert honest.status == 200, f"an image beside {size} costly ones: {honest}"
        assert overtaken <= size // 2, f"{overtaken} of {size} costly images were made before it"
    for task in costly:
        task.result().require(200, 429, 503)


ATTACKS = (
    Attack("slow reports", "stranger", "others log in and publish", _reports, 100, cpu_s=5.0),
    Attack("wrong passwords at once", "stranger", "others log in", _wrong_passwords, 300, cpu_s=8.0),
    Attack("held bodies", "stranger", "a bound on all of them, and room for others", _held_bodies, 400,
           cpu_s=5.0, growth_bytes=128 * MIB, is_scaled=False),
    Attack("votes with keys", "stranger", "over the rate nothing is looked up", _votes_with_keys, 50),
    Attack("ranges by creation", "stranger", "few are read, others get theirs", _ranges_by_creation, 1_000,
           cpu_s=8.0),
    Attack("costly images", "stranger", "others get theirs in turn", _costly_images, 24),
)  # fmt: skip
