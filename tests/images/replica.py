"""An image service as a replica has it, in a process of its own.

`python -m tests.images.replica DSN DIRECTORY HOST` reads lines, each the URL of a source, and writes one for
each: the ETag of the picture, and whether it was kept.
"""

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from broker.clock import SystemClock
from broker.concurrency.shares import Asker
from broker.deployments.images import open_service
from broker.ids import IdSource
from broker.settings import Settings
from tests.images.stage import KnownFaces


async def serve(dsn: str, directory: str, host: str) -> None:
    """Answer until the end of the input."""
    settings = Settings(data_dir=Path(directory), images_allow_hosts=(host,), images_processes=1)
    async with AsyncExitStack() as stack:
        opened = await open_service(stack, settings, dsn, KnownFaces(), IdSource(SystemClock()))
        while line := await asyncio.to_thread(sys.stdin.readline):
            picture = await opened.service.get(Asker("demo"), "w=50", line.strip())
            sys.stdout.write(f"{picture.etag} {picture.is_hit}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
