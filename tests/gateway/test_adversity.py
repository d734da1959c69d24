"""A gateway while PostgreSQL or the owner is away."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from tests.gateway.test_calls import fails
from tests.gateway.world import World

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

SETTINGS = {"database_timeout_s": 0.5, "publish_timeout_s": 1.0, "ws_messages_per_s": 0}


@asynccontextmanager
async def database_away(world: World, host: str) -> AsyncIterator[None]:
    """Nobody gets a connection to the world's database, and those that are open are cut."""
    async with world.product.services.database.connection() as connection:
        name = await connection.fetchval("SELECT current_database()")
    operator = await asyncpg.connect(host=host, user="broker", database="postgres")
    try:
        await operator.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false")
        await operator.execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        )
        try:
            yield
        finally:
            await operator.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS true")
    finally:
        await operator.close()


async def test_followed_programs_go_on_without_the_database(world: World, postgres_server: str) -> None:
    public = await world.program()
    private = await world.program(access="private", projectId="own")
    unfollowed = await world.program()
    user, admin = await world.join("user"), await world.admin()
    for program in (public, private):
        await user.call("subscribe", programId=program)
    for role in ("client", "producer"):
        await world.join(role)  # a token that was seen before goes on working
    async with database_away(world, postgres_server):
        anonymous, producer = await world.join(), await world.join("producer")
        assert (await anonymous.call("subscribe", programId=public))["seq"] == 0
        assert (await producer.call("subscribe", programId=private))["seq"] == 0
        client = await world.join("client")
        assert (await fails(client, "subscribe", programId=private)).code == 403
        unavailable = await fails(anonymous, "subscribe", programId=unfollowed)
        assert (unavailable.code, unavailable.name) == (503, "unavailable")
        assert unavailable.data["retryAfter"] >= 1
        publish = await admin.send("producer", programId=public, event="A#b")
        assert await admin.call("servertime")
    assert (await admin.answer(publish))["seq"] == 1  # it has waited for the database
    await world.publish(public, 1)
    assert await anonymous.pushes(2) == [1, 2]
    assert (await anonymous.call("subscribe", programId=unfollowed))["seq"] == 0


async def test_clients_find_a_gateway_without_the_database(world: World, postgres_server: str) -> None:
    viewer = await world.join()
    async with database_away(world, postgres_server):
        answer = await viewer.call("connect")
    # It knows them from its start; tests/resources/test_connect.py asks one that has never read them.
    assert [server["url"] for server in answer["servers"]] == [answer["url"]]
    assert answer["retryAfterMs"] == 0
