"""What a server may lose of what it has committed, told of real servers and their standbys."""

from pathlib import Path

import asyncpg
import pytest

from broker.storage.durability import find_risks
from tests.servers import Servers, make_template

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


@pytest.fixture
def template(tmp_path: Path) -> Path:
    return make_template(tmp_path / "template")


async def risks(servers: Servers, *, commit: str = "on") -> list[str]:
    """The risks of a session, by what is the matter."""
    connection = await asyncpg.connect(servers.dsn)
    try:
        await connection.execute(f"SET synchronous_commit = {commit}")
        return [risk.partition(":")[0] for risk in await find_risks(connection)]
    finally:
        await connection.close()


async def test_what_a_server_and_its_standbys_may_lose_is_told(tmp_path: Path, template: Path) -> None:
    hasty = ["fsync is off", "full_page_writes is off"]  # all servers of the tests are
    servers = Servers(tmp_path, template)
    try:
        await servers.start("first")
        await servers.put_in_charge("first")
        assert await risks(servers) == hasty
        assert await risks(servers, commit="off") == [*hasty, "synchronous_commit is off"]
        await servers.add_standby("second", "first")
        await servers.put_in_charge("first")
        asynchronous = "its standbys are asynchronous (synchronous_standby_names is empty)"
        assert await risks(servers) == [*hasty, asynchronous]
        await servers.fetch("first", "ALTER SYSTEM SET synchronous_standby_names = '*'")
        await servers.fetch("first", "SELECT pg_reload_conf()")
        assert await risks(servers) == hasty
        assert await risks(servers, commit="local") == [*hasty, "synchronous_commit is local"]
    finally:
        await servers.stop()
