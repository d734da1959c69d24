"""An image replica without Ray, in a process of its own.

`python -m tests.images.replica DSN DIRECTORY HOST` reads lines, each the path of an image, and writes one for
each: status and headers in JSON. `open_replica` starts it.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec


class Told(msgspec.Struct, frozen=True):
    """What a replica answered; header names in lower case."""

    status: int
    headers: dict[str, str]


@dataclass(frozen=True)
class Replica:
    """The process, for one request at a time."""

    process: asyncio.subprocess.Process

    async def get(self, path: str) -> Told:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{path}\n".encode())
        return msgspec.json.decode(await self.process.stdout.readline(), type=Told)


@asynccontextmanager
async def open_replica(
    dsn: str, directory: Path, port: int, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Replica]:
    """A replica that may fetch from this port of 127.0.0.1; `environment` is added to ours."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.images.replica", dsn, str(directory), f"127.0.0.1:{port}"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **(environment or {})},
    )
    try:
        yield Replica(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), 60) == 0


async def serve(dsn: str, directory: str, host: str) -> None:
    """Answer until the end of the input."""
    from broker.deployments.images import ImagesReplica
    from broker.settings import Settings
    from tests.asgi import ask

    settings = Settings(data_dir=Path(directory), images_allow_hosts=(host,), images_processes=1)
    async with AsyncExitStack() as stack:
        app = await ImagesReplica(settings, dsn).open(stack)
        while line := await asyncio.to_thread(sys.stdin.readline):
            told = await ask(app, "GET", line.strip())
            sys.stdout.write(msgspec.json.encode(Told(told.status, told.headers)).decode() + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
