"""A revoked signing key, in a world of its own: nobody's token is good afterwards."""

import asyncio

import pytest
from websockets.exceptions import InvalidStatus

from broker.auth.keys import Keyring, KeyringConfig
from broker.clock import SystemClock
from broker.domain.audit import Actor
from broker.storage.keys import Keys
from tests.gateway.world import RpcError, World

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


async def test_revoked_key_ends_private_subscriptions_of_open_connections(world: World) -> None:
    """The viewer calls nothing, and public subscriptions go on."""
    program, public = await world.program(access="private", projectId="own"), await world.program()
    token = await world.new_user("viewer", "user", "own")
    viewer = await world.join(token=token)
    await viewer.call("subscribe", programId=program)
    await viewer.call("subscribe", programId=public)
    principal = await world.product.services.auth.authenticate("demo", token)
    ring = Keyring(Keys(world.product.services.database), SystemClock(), KeyringConfig(3600))
    await ring.revoke([str(principal.key_id)], Actor.operator())
    async with asyncio.timeout(5):
        assert (await viewer.next("unsubscribed"))["programId"] == program
    with pytest.raises(RpcError) as caught:
        await viewer.call("getCurrentUser")
    assert caught.value.code == 401
    with pytest.raises(InvalidStatus):
        await world.join(token=token)
    director = await world.join(token=await world.new_user("director", "admin"))
    await director.call("producer", programId=public, events=[{"event": "Score#update"}])
    assert (await viewer.next("event"))["programId"] == public
