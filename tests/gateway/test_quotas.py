"""The quota of events a second at the WebSocket door, which shares it with the HTTP door."""

from collections.abc import AsyncIterator

import pytest

from broker.domain.audit import Actor
from broker.domain.quotas import QuotaName
from broker.storage.account_quotas import AccountQuotas
from tests.gateway.world import RpcError, World, open_world

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

PUBLISH = {"event": "Score#update", "metadata": {}}


@pytest.fixture
async def world(migrated_dsn: str) -> AsyncIterator[World]:
    async with open_world(migrated_dsn) as world:
        yield world


async def test_events_of_both_doors_are_counted_together(world: World) -> None:
    services, clock = world.product.services, world.product.clock
    program = await world.program()
    await AccountQuotas(services.database).set("demo", {QuotaName.EVENTS: 3}, Actor.operator())
    await world.gateway._read_accounts()
    clock.stop()
    clock.forward_ms += 6_000  # until the HTTP door looks again
    producer = await world.join("admin")
    await producer.call("producer", programId=program, **PUBLISH)
    await world.product.publish(program, PUBLISH, PUBLISH)
    with pytest.raises(RpcError) as caught:
        await producer.call("producer", programId=program, **PUBLISH)
    assert (caught.value.code, caught.value.name) == (429, "slow_down")
    assert "quota of 3 events a second" in caught.value.data["error_description"]
    clock.forward_ms += 1_000
    await producer.call("producer", programId=program, **PUBLISH)
