"""Traced publishes on their way to an owner and from it, also beside processes that know no traces."""

from collections.abc import Sequence
from typing import Protocol

import pytest

from broker.clock import SystemClock
from broker.domain.idempotency import IdempotencyKey
from broker.errors import NotFound
from broker.owners.calls import OWNER_CALLS
from broker.owners.commands import Accepted, DeleteEvent, ProgramCommand, Publish, TracedPublish
from broker.owners.encoding import find_traces, parse_attributes
from broker.owners.owner import Owner
from broker.owners.protocol import Attributes, EntryKind, NewEventRow
from broker.owners.sessions import Follow, PollReply
from broker.rpc.calls import Calls
from broker.settings import Settings
from tests.owners.support import create_programs, ids, publish, row
from tests.owners.test_sequencer import run, tables
from tests.tracing.collector import open_collector

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
CONTEXT = f"00-{TRACE}-{SPAN}-01"


class _Former(ProgramCommand[Accepted], tag="Publish", frozen=True):
    """A publish as processes carry it that know no traces."""

    events: tuple[NewEventRow, ...]
    key: IdempotencyKey | None


class _FormerCalls(Protocol):
    async def submit(self, commands: Sequence[_Former | DeleteEvent], wait_s: float) -> None: ...


FORMER: Calls[_FormerCalls] = Calls(_FormerCalls)


def traced(count: int = 1, program_id: str = "a") -> TracedPublish:
    return TracedPublish(ids.uuid7(), "demo", program_id, tuple(row() for _ in range(count)), None, CONTEXT)


def former_of(command: Publish) -> _Former:
    return _Former(command.id, command.account, command.program_id, command.events, command.key)


@pytest.mark.parametrize("key", [None, "k"])
def test_a_publish_that_is_not_traced_takes_not_one_byte_more(key: str | None) -> None:
    command = publish(count=3, key=key)
    carried = OWNER_CALLS.pack_call(1, "submit", ([command], 1.0))
    assert carried == OWNER_CALLS.pack_call(1, "submit", ([former_of(command)], 1.0))


def test_processes_with_and_without_traces_understand_each_other() -> None:
    command = traced(2)
    _, _, body = FORMER.unpack_call(OWNER_CALLS.pack_call(1, "submit", ([command], 1.0)))
    assert FORMER.read_arguments("submit", body) == ([former_of(command)], 1.0)
    _, _, body = OWNER_CALLS.unpack_call(FORMER.pack_call(1, "submit", ([former_of(command)], 1.0)))
    ((received,), _) = OWNER_CALLS.read_arguments("submit", body)
    assert isinstance(received, TracedPublish)
    assert (received.trace, received.events) == (None, command.events)


def test_a_traced_publish_arrives_with_its_trace() -> None:
    command = traced()
    _, _, body = OWNER_CALLS.unpack_call(OWNER_CALLS.pack_call(1, "submit", ([command], 1.0)))
    assert OWNER_CALLS.read_arguments("submit", body) == ([command], 1.0)


def test_entry_that_names_a_trace_stands_before_the_pushes_and_changes_nothing() -> None:
    done = run(tables().found(), publish("a"), traced(2), publish("a"))
    entries = done.entries["demo", "a"]
    kinds = [EntryKind.PUSH, EntryKind.ATTRIBUTES, EntryKind.PUSH, EntryKind.PUSH, EntryKind.PUSH]
    assert [entry.kind for entry in entries] == kinds
    assert [entry.seq for entry in entries] == [1, 1, 2, 3, 4]
    assert find_traces(entries) == [CONTEXT]
    assert parse_attributes(entries[1].params) == Attributes(public=True, project_id=None)
    assert b"trace" not in b"".join(entry.params for entry in entries if entry.kind == EntryKind.PUSH)


def test_without_traces_entries_are_pushes_alone() -> None:
    from_a_link = TracedPublish("id", "demo", "a", (row(),), None)
    done = run(tables().found(), publish("a", 2), from_a_link)
    assert [entry.kind for entry in done.entries["demo", "a"]] == [EntryKind.PUSH] * 3


@pytest.mark.anyio
@pytest.mark.postgres
async def test_an_owner_tells_how_long_publishes_took_it(migrated_dsn: str) -> None:
    await create_programs(migrated_dsn, ["a"])
    with open_collector() as collector:
        settings = Settings(traces_url=collector.url, database_pool=2)
        owner = await Owner.start(settings, migrated_dsn, 0, clock=SystemClock())
        try:
            replies = await owner.submit([traced(2), publish("a"), traced(1, "nowhere")], 10.0)
        finally:
            await owner.close()
        seen = [span for span in collector.seen() if span.name == "publish"]
    assert [type(reply) for reply in replies] == [Accepted, Accepted, NotFound]
    assert {(span.trace_id, span.parent_id) for span in seen} == {(TRACE, SPAN)}
    told = {"broker.slot": "owner-0", "broker.program": "a", "broker.events": 2}
    failed = {"broker.slot": "owner-0", "broker.program": "nowhere", "broker.events": 1}
    assert [span.attributes for span in seen] == [told, failed | {"error.type": "not_found"}]


@pytest.mark.anyio
@pytest.mark.postgres
async def test_an_owner_without_a_collector_hands_the_trace_on(migrated_dsn: str) -> None:
    await create_programs(migrated_dsn, ["a"])
    owner = await Owner.start(Settings(database_pool=2), migrated_dsn, 0, clock=SystemClock())
    try:
        await owner.open("gateway", [Follow(1, "demo/program/a", None)])
        (reply,) = await owner.submit([traced()], 10.0)
        told = await owner.poll("gateway", 0)
    finally:
        await owner.close()
    assert isinstance(reply, Accepted)
    assert isinstance(told, PollReply)
    ((_, _, seq, entries),) = told.batches
    assert seq == 1
    assert find_traces(entries) == [CONTEXT]
    assert entries[-1].params == reply.events[0]
