"""The disk of the database is full for a while; run as a program in a mount namespace of its own.

PostgreSQL's data directory, the first argument, becomes a file system of its own that is too small. Producers
publish until it is full and go on; then there is room again. Everything else of the product is in this
process, without Ray. Ends with 0 when all was right.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import asyncpg
import httpx

from broker.storage.embedded.server import EmbeddedPostgres
from tests.adversity.judge import Publish, Push, Stored, judge, short_id
from tests.adversity.soak import PUSHES, STORED
from tests.gateway.world import Viewer, World, open_world

_SIZE = "192m"  # an empty server takes 60
_PRODUCERS = 4
_BATCH = 20
_PADDING = "x" * 2_000
_TRY_S = 3.0  # of a publish; all producers wait for it
_PATIENCE_S = 60.0


class Crowd:
    """Producers over HTTP, and what they were answered."""

    def __init__(self, world: World) -> None:
        self.publishes: list[Publish] = []
        self.refusals: list[httpx.Response] = []
        self.stopping = False
        self._world = world

    async def produce(self, by: int) -> None:
        """Publish batches, each once, until told to stop."""
        first = 0
        async with self._world.product.door() as door:
            while not self.stopping:
                numbers = range(first, first + _BATCH)
                metadata = [{"by": by, "n": n, "padding": _PADDING} for n in numbers]
                events = [{"event": "Count#up", "metadata": each} for each in metadata]
                sent_s = time.monotonic()
                reply = await door.post("/programs/p/events", json={"events": events}, timeout=_PATIENCE_S)
                self._take(Publish(by, first, _BATCH, sent_s, None, [], []), reply)
                first += _BATCH
                await asyncio.sleep(0.01)

    def _take(self, publish: Publish, reply: httpx.Response) -> None:
        if reply.status_code == 201:
            events = reply.json()["events"]
            seqs, ids = [event["seq"] for event in events], [short_id(event["id"]) for event in events]
            publish = publish._replace(answered_s=time.monotonic(), seqs=seqs, ids=ids)
        else:
            self.refusals.append(reply)
        self.publishes.append(publish)

    @property
    def acknowledged(self) -> int:
        """Publishes that were."""
        return sum(publish.answered_s is not None for publish in self.publishes)


def fill(path: Path) -> None:
    """Write until there is no room."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        for size in (1 << 20, 1 << 12):
            while True:
                try:
                    os.write(handle, bytes(size))
                except OSError:
                    break
    finally:
        os.close(handle)


async def until(is_so: Callable[[], bool]) -> None:
    """Raises TimeoutError."""
    async with asyncio.timeout(_PATIENCE_S):
        while not is_so():  # noqa: ASYNC110 - several tasks bring it about
            await asyncio.sleep(0.05)


async def follow(viewer: Viewer, log: list[Push]) -> None:
    """Keep what the viewer is told."""
    while True:
        message = await viewer.told.get()
        log.append(Push(message["params"]["seq"], short_id(message["params"]["id"])))


async def play(world: World, directory: Path, dsn: str) -> None:
    """The show. Raises AssertionError."""
    await world.product.make_program("p")
    world.product.owners.wait_s = _TRY_S
    log: list[Push] = []
    viewer = await world.join()
    await viewer.call("subscribe", programId="p")
    following = asyncio.create_task(follow(viewer, log))
    crowd = Crowd(world)
    producing = [asyncio.create_task(crowd.produce(by)) for by in range(_PRODUCERS)]
    await until(lambda: crowd.acknowledged > 20)

    fill(directory / "filler")
    try:
        await until(lambda: len(crowd.refusals) >= _PRODUCERS)  # each waited for its time
        for reply in crowd.refusals:
            assert (reply.status_code, reply.json()["error"]) == (503, "unavailable"), reply.text
            assert int(reply.headers["Retry-After"]) >= 1
    finally:
        (directory / "filler").unlink()  # or the end fails too, and hides why

    before = crowd.acknowledged
    await until(lambda: crowd.acknowledged > before + 20)
    crowd.stopping = True
    await asyncio.gather(*producing)

    connection = await asyncpg.connect(dsn)
    stored = [Stored(seq, short_id(id_), *by) for seq, id_, *by in await connection.fetch(STORED, "p")]
    pushes = [Push(seq, short_id(id_)) for seq, id_ in await connection.fetch(PUSHES, "p")]
    await connection.close()
    await until(lambda: len(log) >= len(pushes))
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    findings = judge(crowd.publishes, stored, pushes, {"viewer": log})
    assert findings == [], findings


async def main(directory: Path) -> None:
    """Run a server on the small file system, and the product on it."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE},mode=0755", "tmpfs", str(directory)]
    subprocess.run(mount, check=True)  # noqa: ASYNC221 - nothing else runs yet
    server = EmbeddedPostgres(directory)
    dsn = await server.start()
    keeping = asyncio.create_task(server.supervise())
    try:
        async with open_world(dsn) as world:
            await play(world, directory, dsn)
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await server.stop()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
