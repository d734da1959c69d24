"""Small servers of the demonstration, on free ports of this machine."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn

_HOST = "127.0.0.1"


@asynccontextmanager
async def served(name: str, app: Any, port: int = 0) -> AsyncIterator[str]:
    """Serve an ASGI application while the block lasts; yields its `host:port`, of a free port if it is 0."""
    with socket.create_server((_HOST, port)) as listener:
        # Without it each body waits 40 ms until its head is acknowledged: asyncio sets it only for sockets
        # that name their protocol. What is accepted inherits it.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server = _Server(uvicorn.Config(app, lifespan="off", log_level="warning", access_log=False))
        task = asyncio.create_task(server.serve(sockets=[listener]), name=name)
        try:
            yield f"{_HOST}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            server.force_exit = True
            await task


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to whoever serves more than this."""
        yield
