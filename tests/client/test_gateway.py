"""The SDK's subscriptions against the real gateway, through a relay that can be cut."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from broker.client import (
    AsyncClient,
    Backoff,
    Conflict,
    ConnectionLost,
    Counted,
    Cursor,
    Event,
    EventDeleted,
    EventsDeleted,
    EventUpdated,
    HistoryLost,
    HistoryReplaced,
    LiveResults,
    NotFound,
    ProgramDeleted,
    Socket,
    Subscription,
    Unauthenticated,
    Unsubscribed,
)
from broker.client.subscription import SubscriptionConfig
from tests.client.doors import open_doors
from tests.client.peer import Answer, serving
from tests.client.relay import Relay
from tests.gateway.world import World, open_world

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

RETURN = SubscriptionConfig(backoff=Backoff(0.05, 0.1), first_deadline_s=1.0)


@pytest.fixture
async def world(migrated_dsn: str, anyio_backend: str) -> AsyncIterator[World]:
    async with open_world(migrated_dsn, ws_messages_per_s=0) as world:
        yield world


@asynccontextmanager
async def _client(world: World, role: str | None = None) -> AsyncIterator[tuple[AsyncClient, Relay]]:
    relay = Relay(world.port)
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
    relay.port = server.sockets[0].getsockname()[1]
    found = {"url": f"ws://demo.localhost:{relay.port}/api/v1/ws", "servers": []}
    token = None if role is None else world.product.tokens[role]
    async with (
        serving(lambda asked: Answer(200, found)) as api,
        AsyncClient(api.url, token=token, subscription=RETURN) as client,
    ):
        try:
            yield client, relay
        finally:
            server.close()


async def _take(items: AsyncIterator[Event], count: int) -> list[int]:
    async with asyncio.timeout(20):
        return [(await anext(items)).seq for _ in range(count)]


async def _opened(subscription: Subscription[Event]) -> AsyncIterator[Event]:
    return aiter(subscription)


async def test_what_is_missed_while_cut_comes_once_and_in_order(world: World) -> None:
    program = await world.program()
    await world.publish(program, 3)
    async with _client(world) as (client, relay):
        subscription = client.subscribe(program, history=2)
        items = await _opened(subscription)
        assert await _take(items, 2) == [2, 3]
        relay.is_open = False
        relay.cut()
        await world.publish(program, 2_500)
        relay.is_open = True
        assert await _take(items, 2_500) == list(range(4, 2_504))
        await world.publish(program, 1)
        assert await _take(items, 1) == [2_504]
        assert subscription.reconnects == 1
        assert subscription.cursor is not None
        assert subscription.cursor.seq == 2_504


async def test_events_of_the_most_that_one_may_hold_come_whole(world: World) -> None:
    program = await world.program()
    metadata_bytes = 65_536 - len('{"text":""}')
    await world.publish(program, bytes_each=metadata_bytes)
    async with (
        _client(world) as (client, relay),
        aclosing(aiter(client.subscribe(program, history=1))) as items,
    ):
        texts = [(await anext(items)).metadata["text"]]
        relay.is_open = False
        relay.cut()
        await world.publish(program, 20, bytes_each=metadata_bytes)
        relay.is_open = True
        async with asyncio.timeout(20):
            texts += [(await anext(items)).metadata["text"] for _ in range(20)]
    assert {len(text) for text in texts} == {metadata_bytes}


async def test_a_silent_link_is_left_for_another_connection(migrated_dsn: str) -> None:
    async with open_world(migrated_dsn, ws_alive_s=0.3) as world:
        program = await world.program()
        async with _client(world) as (client, relay):
            subscription = client.subscribe(program)
            following = asyncio.create_task(_take(aiter(subscription), 3))
            async with asyncio.timeout(20):
                await subscription.answered()
                await relay.carried(b'"alive"')
            relay.freeze()
            await world.publish(program, 3)
            assert await following == [1, 2, 3]
            assert subscription.reconnects == 1
            relay.cut()


async def test_a_channel_over_a_silent_link_ends(migrated_dsn: str) -> None:
    async with open_world(migrated_dsn, ws_alive_s=0.3) as world:
        program = await world.program()
        async with _client(world) as (client, relay):

            async def cut() -> None:
                await relay.carried(b'"alive"')
                relay.freeze()

            # Pings find it out after half a minute.
            async with asyncio.timeout(20):
                with pytest.raises(ConnectionLost):
                    await anext(client.channels.follow(f"responses:{program}", followed=cut))
            relay.cut()


async def test_every_kind_of_change_is_yielded_in_its_place(world: World) -> None:
    program, admin = await world.program(), await world.admin()
    await world.publish(program, 1)
    async with _client(world) as (client, _), asyncio.timeout(20):
        changes = aiter(client.subscribe(program, history=1, changes=True))
        first = await anext(changes)
        assert isinstance(first, Event)
        await admin.call("updateProgramEvent", programId=program, eventId=first.id, metadata={"a": 2})
        updated = await anext(changes)
        assert isinstance(updated, EventUpdated)
        assert (updated.event.id, updated.event.seq, updated.event.metadata) == (first.id, 2, {"a": 2})
        await admin.call("deleteProgramEvent", programId=program, eventId=first.id)
        deleted = await anext(changes)
        assert deleted == EventDeleted(3, first.epoch, program, first.id)
        await world.publish(program, 2)
        assert [(await anext(changes)).seq for _ in range(2)] == [4, 5]  # type: ignore[union-attr]
        await admin.call("deleteAllProgramEvents", programId=program)
        erased = await anext(changes)
        assert isinstance(erased, EventsDeleted)
        assert (erased.deleted, erased.epoch != first.epoch) == (2, True)
        await admin.call(
            "importProgramEvents", programId=program, events=[{"event": "A#b"}, {"event": "C#d"}]
        )
        replaced = await anext(changes)
        assert isinstance(replaced, HistoryReplaced)
        assert replaced.seq == 2
        await world.publish(program, 1)
        last = await anext(changes)
        assert isinstance(last, Event)
        assert (last.epoch, last.seq) == (replaced.epoch, 3)


async def test_history_replaced_while_cut_is_lost(world: World) -> None:
    program, admin = await world.program(), await world.admin()
    await world.publish(program, 1)
    async with _client(world) as (client, relay):
        items = await _opened(client.subscribe(program, history=1))
        assert await _take(items, 1) == [1]
        relay.is_open = False
        relay.cut()
        await admin.call("importProgramEvents", programId=program, events=[{"event": "A#b"}])
        relay.is_open = True
        with pytest.raises(HistoryLost) as lost:
            await _take(items, 1)
        assert lost.value.seq == 1


async def test_what_was_lost_is_read_and_followed_without_a_gap(world: World) -> None:
    program, admin = await world.program(), await world.admin()
    await world.publish(program, 3)
    async with open_doors(world) as doors, AsyncClient(doors.url, subscription=RETURN) as client:
        items = await _opened(client.subscribe(program, history=3))
        assert await _take(items, 2) == [1, 2]
        doors.relay.is_open = False
        doors.relay.cut()
        events = [{"event": "New#first"}, {"event": "New#second"}]
        await admin.call("importProgramEvents", programId=program, events=events)
        doors.relay.is_open = True
        with pytest.raises(HistoryLost) as lost:
            await _take(items, 2)  # the third had come already
        await admin.call("producer", programId=program, event="New#third")
        missed = await client.events.missed(lost.value)
        assert [event.event for event in missed] == ["New#first", "New#second"]
        async with aclosing(aiter(client.subscribe(program, lost.value.cursor))) as rest:
            assert (await anext(rest)).event == "New#third"


async def test_of_a_history_that_is_too_long_only_the_rest_is_missed(world: World) -> None:
    program = await world.program()
    await world.publish(program, 5)
    async with open_doors(world) as doors, AsyncClient(doors.url) as client:
        (epoch,) = {event.epoch for event in await client.events.list(program)}
        lost = HistoryLost(program, Cursor(epoch, 4), Cursor(epoch, 2))
        assert [event.seq for event in await client.events.missed(lost)] == [3, 4]


async def test_deleted_program_ends_the_subscription(world: World) -> None:
    program, admin = await world.program(), await world.admin()
    await world.publish(program, 1)
    async with _client(world) as (client, _):
        items = await _opened(client.subscribe(program, history=1))
        assert await _take(items, 1) == [1]
        await admin.call("admin/deleteProgram", programId=program)
        with pytest.raises(ProgramDeleted):
            await _take(items, 1)


async def test_program_deleted_while_disconnected_ends_the_subscription(world: World) -> None:
    program, admin = await world.program(), await world.admin()
    await world.publish(program, 1)
    async with _client(world, "user") as (client, relay):
        items = await _opened(client.subscribe(program, history=1))
        assert await _take(items, 1) == [1]
        relay.is_open = False
        relay.cut()
        await admin.call("admin/deleteProgram", programId=program)
        relay.is_open = True
        with pytest.raises(ProgramDeleted):
            await _take(items, 1)


async def test_program_made_private_ends_an_anonymous_subscription(world: World) -> None:
    program = await world.program(scheduledStartTime="2026-01-01", scheduledEndTime="2026-01-02")
    await world.publish(program, 1)
    async with _client(world) as (client, _):
        items = await _opened(client.subscribe(program, history=1))
        assert await _take(items, 1) == [1]
        await world.set_access(program, "private")
        with pytest.raises(Unsubscribed):
            await _take(items, 1)


async def test_refusals_are_raised_at_once(world: World) -> None:
    async with _client(world) as (client, _):
        with pytest.raises(Unauthenticated):
            await _take(await _opened(client.subscribe("unknown")), 1)
    async with _client(world, "user") as (client, _):
        with pytest.raises(NotFound):
            await _take(await _opened(client.subscribe("unknown")), 1)


POLL = {"title": "Who wins?", "options": ["Home", "Away"]}


async def _ask(world: World, **metadata: object) -> tuple[str, str]:
    """A program, and an event in it that asks something."""
    program, admin = await world.program(), await world.admin()
    event = await admin.call("producer", programId=program, event="Poll#show", metadata=POLL | metadata)
    return program, event["id"]


async def _follow(
    client: AsyncClient, socket: Socket, program: str, context: str
) -> tuple[AsyncIterator[LiveResults], LiveResults]:
    """The program's results and the first that are told; until then one more votes all the time."""
    results = client.responses.follow(program)
    following = asyncio.ensure_future(anext(results))
    voter = 0
    while not following.done():
        voter += 1
        await socket.respond(program, "whoWins", context, 1, visitor_id=f"early {voter}")
        await asyncio.wait([following], timeout=0.2)
    return results, await following


async def _exhaust(results: AsyncIterator[LiveResults]) -> None:
    async for _ in results:
        pass


async def test_answers_over_a_connection_are_told_as_results(world: World) -> None:
    program, context = await _ask(world)
    async with _client(world) as (client, _), client.socket() as socket, asyncio.timeout(20):
        results, told = await _follow(client, socket, program, context)
        assert (told.account_id, told.measure_name, told.context_id) == ("demo", "whoWins", context)
        assert (told.results[0], told.total) == (0, told.results[1])
        assert await socket.respond(program, "whoWins", context, [0, 1]) == Counted(1, 0)
        assert await socket.respond(program, "whoWins", context, 0) == Counted(0, 1)
        assert await socket.impression(program, "whoWins", context, session_id="s") == Counted(1, 0)
        while not told.results[0]:
            told = await anext(results)
        assert told.total == told.results[1] + 1
        await (await world.admin()).call("admin/deleteProgram", programId=program)
        with pytest.raises(ProgramDeleted):
            await _exhaust(results)


async def test_results_of_a_program_made_private_end(world: World) -> None:
    program, context = await _ask(world)
    async with _client(world) as (client, _), client.socket() as socket, asyncio.timeout(20):
        results, _first = await _follow(client, socket, program, context)
        await world.set_access(program, "private")
        with pytest.raises(Unsubscribed):
            await _exhaust(results)


async def test_answer_after_the_end_is_refused(world: World) -> None:
    program, context = await _ask(world, closes=1)
    async with _client(world) as (client, _), client.socket() as socket:
        with pytest.raises(Conflict):
            await socket.respond(program, "whoWins", context, 0)
