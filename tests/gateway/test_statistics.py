"""What a gateway tells the statistics."""

from datetime import UTC, datetime
from typing import Any

import pytest

from broker.domain.statistics import Subject
from broker.gateway.statistics import Sampler
from broker.gateway.topics import Followed
from broker.owners.protocol import Attributes
from tests.gateway.world import World, open_world

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


async def newest(world: World, account: str = "demo", **params: str) -> Any:
    """The sums of the counters and the highest of the gauges of the last hour."""
    async with world.product.door(account=account) as door:
        answer = await door.get("/statistics/filtered", params=params)
    series = answer.json()["series"]
    gauges = {name: max(point[name] for point in series) for name in ("connections", "subscribers")}
    return gauges | {"deliveries": sum(point["deliveries"] for point in series)}


async def test_viewers_and_deliveries_are_told(migrated_dsn: str) -> None:
    async with open_world(migrated_dsn, ws_messages_per_s=0) as world:
        program = await world.program(projectId="own")
        quiet = await world.program()
        viewers = [await world.join() for _ in range(3)]
        for viewer in viewers:
            await viewer.call("subscribe", programId=program)
        await viewers[0].call("subscribe", programId=quiet)
        channel = await world.join("producer")
        await channel.call("subscribe", channel="project:own")
        await world.join(account="other")
        await world.publish(program, 2)
        for viewer in (*viewers, channel):
            await viewer.pushes(2)
        assert world.gateway._sampler is not None
        await world.gateway._sampler.sample()
        await world.gateway._sampler.sample()  # which has nothing new
        # three viewers, the admin that published, the one on the channel
        assert await newest(world) == {"connections": 5, "subscribers": 5, "deliveries": 8}
        assert await newest(world, programId=program) == {"connections": 5, "subscribers": 3, "deliveries": 6}
        assert await newest(world, programId=quiet) == {"connections": 5, "subscribers": 1, "deliveries": 0}
        assert await newest(world, projectId="own") == {"connections": 5, "subscribers": 3, "deliveries": 6}
        assert await newest(world, "other") == {"connections": 1, "subscribers": 0, "deliveries": 0}
        async with world.product.door() as door:
            dashboard = (await door.get("/statistics/dashboard")).json()
        assert (dashboard["connections"], dashboard["subscribers"]) == (5, 5)
        assert [each["programId"] for each in dashboard["topPrograms"]][:2] == [program, quiet]


async def test_a_gateway_that_stops_writes_the_rest(migrated_dsn: str) -> None:
    async with open_world(migrated_dsn) as world:
        program = await world.program()
        viewer = await world.join()
        await viewer.call("subscribe", programId=program)
        await world.publish(program, 3)
        await viewer.pushes(3)
        await world.gateway.stop()
        assert (await newest(world))["deliveries"] == 3


async def test_off_is_off(migrated_dsn: str) -> None:
    async with open_world(migrated_dsn, statistics=False) as world:
        program = await world.program()
        await world.publish(program)
        assert world.gateway._sampler is None
        assert world.product.owners.owner._recorder is None
        await (await world.admin()).call("ping")
        async with world.product.services.database.connection() as connection:
            assert await connection.fetchval("SELECT count(*) FROM producers_seen") == 0


class Counted:
    """Native figures that are set by hand."""

    def __init__(self) -> None:
        self.figures: dict[str, Any] = {"accounts": {}, "topics": {}, "topic_deliveries": {}}

    def stats(self) -> dict[str, Any]:
        return self.figures


class Opened:
    """Topics that are followed, set by hand."""

    def __init__(self) -> None:
        self.followed: dict[str, Followed] = {}

    def find(self, topic: str) -> Followed | None:
        return self.followed.get(topic)


async def test_logs_that_come_and_go_are_counted_right(migrated_dsn: str) -> None:
    topic = "demo/program/final"
    async with open_world(migrated_dsn) as world:
        native, topics = Counted(), Opened()
        sampler = Sampler(native, topics, world.product.services)
        topics.followed[topic] = Followed(topic, Attributes(public=True, project_id="own"))

        def look(deliveries: int | None) -> None:
            native.figures = {
                "accounts": {"demo": 1},
                "topics": {} if deliveries is None else {topic: 1},
                "topic_deliveries": {} if deliveries is None else {topic: deliveries},
            }
            sampler.look()

        for deliveries in (5, 7, 7, 2, None, 4):  # reopened at 2, closed, opened again
            look(deliveries)
        del topics.followed[topic]
        look(9)  # the program is gone, what it was is known
        now_ms = int(datetime.now(UTC).timestamp() * 1_000)
        amounts = sampler._recorder.tally.take(now_ms)
        counted: dict[Subject, int] = {}
        for amount in amounts:
            counted[amount.subject] = counted.get(amount.subject, 0) + amount.figures.deliveries
        assert counted == {Subject("demo"): 18, Subject("demo", "final", "own"): 18}
