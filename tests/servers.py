"""PostgreSQL servers that take each other's place: standbys, and what is restored from a backup.

All are reached under one DSN, by a link to the directory of the socket of whichever is in charge.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import asyncpg

from broker.deployments.ports import free_port
from broker.storage.embedded import process
from broker.storage.embedded.process import PidFile
from broker.storage.embedded.server import EmbeddedPostgres
from broker.storage.migrations import migrate

_SETTINGS = {
    # Only a crash of the whole machine could tell.
    "fsync": "off",
    "full_page_writes": "off",
    "wal_level": "replica",
    "max_wal_senders": "4",
    "wal_keep_size": "64MB",
    "wal_receiver_status_interval": "1",
}
_ADMITTED = "local all all trust\nlocal replication all trust\nhost replication all 127.0.0.1/32 trust\n"
_RECEIVERS = "SELECT count(*) FROM pg_stat_wal_receiver"
_RECEIVED = "SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn"


def make_template(root: Path) -> Path:
    """A data directory with our schema, to be copied."""
    server = EmbeddedPostgres(root, settings=_SETTINGS)
    try:
        asyncio.run(migrate(asyncio.run(server.start())))
    finally:
        asyncio.run(server.stop())
    data = root / "data"
    (data / "pg_hba.conf").write_text(_ADMITTED)
    return data


class Servers:
    """Up to a few servers in `root`; `dsn` is the way to the one that is in charge."""

    def __init__(self, root: Path, template: Path) -> None:
        self._root = root
        self._template = template
        self._port = free_port()
        self._running: dict[str, EmbeddedPostgres] = {}
        self._link = root / "now"
        self.dsn = f"postgresql://broker@/postgres?host={self._link}&port={self._port}"

    async def start(self, name: str, data: Path | None = None, **settings: str) -> None:
        """Start a server on a copy of `data`, by default the template."""
        await asyncio.to_thread(self._copy, data or self._template, self._data(name))
        await self._run(name, settings)

    async def put_in_charge(self, name: str) -> None:
        """What connects from now on gets to this one."""
        self._link.unlink(missing_ok=True)
        self._link.symlink_to(self._running[name].socket_directory)

    async def kill(self, name: str) -> None:
        """End a server as a failure of its machine does."""
        server = self._running.pop(name)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        await server.stop()
        await asyncio.to_thread(process.stop, self._data(name))
        await asyncio.to_thread(process.remove_traces, self._data(name), server.socket_directory / "none")

    async def back_up(self, name: str) -> Path:
        """A copy of the files, taken while the server is down for it; it goes on then."""
        await self._running.pop(name).stop()
        copy = self._root / f"{name}-backup"
        await asyncio.to_thread(self._copy, self._data(name), copy)
        await self._run(name, {})
        return copy

    async def add_standby(self, name: str, primary: str) -> None:
        """A standby that streams from `primary`, which is in charge and stands still meanwhile."""
        await self._running.pop(primary).stop()
        await asyncio.to_thread(self._make_standby, self._data(primary), self._data(name))
        await self._run(primary, {"listen_addresses": "127.0.0.1"})
        with _standbys_are_ready():
            await self._run(name, {})
        await self.catch_up(name, primary)

    async def catch_up(self, name: str, primary: str) -> None:
        """Wait until the standby has all that its primary has written."""
        (here,) = await self.fetch(primary, "SELECT pg_current_wal_lsn()::text AS lsn")
        async with asyncio.timeout(30):
            while not (await self.fetch(name, _RECEIVED, here["lsn"]))[0][0]:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.02)

    async def cut_off(self, standby: str) -> None:
        """The standby gets nothing more."""
        await self.fetch(standby, "ALTER SYSTEM SET primary_conninfo = ''")
        await self.fetch(standby, "SELECT pg_reload_conf()")
        async with asyncio.timeout(30):
            while (await self.fetch(standby, _RECEIVERS))[0][0]:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.02)

    async def promote(self, standby: str) -> None:
        """Make a standby a primary, and put it in charge."""
        (promoted,) = await self.fetch(standby, "SELECT pg_promote()")
        assert promoted[0]
        await self.put_in_charge(standby)

    async def dump_into(self, name: str, source: str) -> None:
        """A new server with the rows of another: what is restored from a dump."""
        await self.start(name)
        old, new = await self._connect(source), await self._connect(name)
        try:
            await new.execute("SET session_replication_role = replica")
            for (table,) in await new.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'"):
                rows = self._root / "rows"
                await old.copy_from_table(table, output=rows, format="binary")
                await new.execute(f'DELETE FROM "{table}"')
                await new.copy_to_table(table, source=rows, format="binary")
            for (sequence,) in await new.fetch("SELECT sequencename FROM pg_sequences"):
                value, is_called = await old.fetchrow(f'SELECT last_value, is_called FROM "{sequence}"')
                await new.execute("SELECT setval($1::text::regclass, $2, $3)", sequence, value, is_called)
        finally:
            await old.close()
            await new.close()

    async def fetch(self, name: str, statement: str, *values: object) -> list[asyncpg.Record]:
        """Ask one of the servers."""
        connection = await self._connect(name)
        try:
            return list(await connection.fetch(statement, *values))
        finally:
            await connection.close()

    async def stop(self) -> None:
        """Stop all."""
        for server in self._running.values():
            await server.stop()

    def _data(self, name: str) -> Path:
        return self._root / name / "data"

    def _make_standby(self, source: Path, data: Path) -> None:
        self._copy(source, data)
        with (data / "postgresql.auto.conf").open("a") as file:
            file.write(f"primary_conninfo = 'host=127.0.0.1 port={self._port} user=broker'\n")
        # With the owner that a server's file has.
        subprocess.run(["cp", "-p", data / "PG_VERSION", data / "standby.signal"], check=True)

    def _copy(self, source: Path, target: Path) -> None:
        target.parent.mkdir(exist_ok=True)
        subprocess.run(["cp", "-a", source, target], check=True)

    async def _run(self, name: str, settings: dict[str, str]) -> None:
        changes = {**_SETTINGS, "port": str(self._port), **settings}
        server = EmbeddedPostgres(self._root / name, settings=changes)
        await server.start()
        self._running[name] = server

    async def _connect(self, name: str) -> asyncpg.Connection:
        directory = str(self._running[name].socket_directory)
        return await asyncpg.connect(host=directory, port=self._port, user="broker", database="postgres")


@contextmanager
def _standbys_are_ready() -> Iterator[None]:
    """The embedded server is never a standby, and waits until it is none."""

    def read(data: Path) -> PidFile | None:
        file = known(data)
        if file is None or (data / "postmaster.pid").read_text().split("\n")[7:8] != ["standby "]:
            return file
        return PidFile(file.pid, is_ready=True)

    known = process.read_pid_file
    with patch.object(process, "read_pid_file", read):
        yield
