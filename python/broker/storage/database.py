"""The connection pool, and the translation of the driver's errors into ours."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg


class Database:
    """A bounded pool of connections to one PostgreSQL; heals by itself when the server comes back.

    `connection` and `transaction` raise `Unavailable` (with `retry_after_s`) when no connection can be had
    within the timeout, or when the server goes away while one is in use.
    """

    @classmethod
    async def open(cls, dsn: str, *, size: int, timeout_s: float) -> "Database":
        """Connect. Raises `Unavailable` when the server cannot be reached, with the driver's text in `log_text`."""
        raise RuntimeError("written by the storage part")

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[asyncpg.Connection]:
        """Lend one connection in autocommit mode."""
        raise RuntimeError("written by the storage part")
        yield

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[asyncpg.Connection]:
        """Lend one connection inside a transaction (READ COMMITTED) that ends with the block."""
        raise RuntimeError("written by the storage part")
        yield

    async def close(self) -> None:
        """Close all connections; those in use get the pool's timeout to come back."""
