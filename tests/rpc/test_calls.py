"""Calls as bytes: what travels, what cannot, and what processes of different age make of each other's."""

import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, get_type_hints

import pytest
from pydantic import create_model

from broker.domain.audit import Actor
from broker.domain.programs import Access, Program
from broker.domain.users import Role
from broker.errors import BrokerError, Conflict, FieldFault, InternalError, MethodNotAllowed, Unavailable
from broker.owners.actor import OwnerActor
from broker.owners.calls import OWNER_CALLS, OwnerCalls
from broker.owners.commands import (
    Accepted,
    AdoptImport,
    Command,
    DeleteEvent,
    DeleteEvents,
    DeleteProgram,
    Imported,
    Kept,
    ProgramChanges,
    Publish,
    TracedPublish,
    UpdateProgram,
)
from broker.owners.protocol import Attributes, Caller, Cursor, Entry, EntryKind, Head, HistoryLost
from broker.owners.sessions import EntryBatch as EntryBatch
from broker.owners.sessions import Follow, PollReply
from broker.rpc.calls import CallError, Calls, CannotTravel, Carried
from broker.voting.counting.actor import CounterActor
from broker.voting.counting.batches import Group, VoteBatch
from broker.voting.counting.calls import COUNTER_CALLS, CounterCalls
from tests.owners.support import program, publish, row, update
from tests.test_errors import KINDS

PROGRAM_CHANGES: ProgramChanges = {
    "name": "Final",
    "scheduled_start_time": datetime(1, 1, 1, tzinfo=UTC),
    "scheduled_end_time": datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC),
    "project_id": None,
    "access": Access.PRIVATE,
    "metadata": {"a": [1, -(2**53), 2.5, "ä", None, {"b": True}]},
}


def there(calls: Calls[Any], method: str, *arguments: object) -> tuple[object, ...]:
    """The arguments as the actor gets them."""
    number, name, body = calls.unpack_call(calls.pack_call(5, method, arguments))
    assert (number, name) == (5, method)
    return calls.read_arguments(method, body)


def back(calls: Calls[Any], method: str, result: object) -> Any:
    """The result as the caller gets it."""
    number, kind, body = calls.unpack_reply(calls.pack_result(5, result))
    assert number == 5
    return calls.read_reply(method, kind, body)


def arrived(command: Command) -> Command:
    """The command as it comes out of a link: there, a publish is one that may be traced."""
    if type(command) is not Publish:
        return command
    return TracedPublish(command.id, command.account, command.program_id, command.events, command.key)


def fields(error: BrokerError) -> tuple[object, ...]:
    return type(error), error.message, error.faults, error.retry_after_s, error.log_text


@pytest.mark.parametrize(
    ("calls", "actor"), [(OwnerCalls, OwnerActor), (CounterCalls, CounterActor)], ids=["owner", "counter"]
)
def test_actor_has_the_methods_that_are_called(calls: type, actor: type) -> None:
    known: Calls[Any] = Calls(calls)
    for name in known.methods:
        hints = get_type_hints(getattr(calls, name))
        # The actor's module has these names for the type checker alone.
        names = vars(sys.modules[calls.__module__])
        assert get_type_hints(getattr(actor, name), localns=names) == hints, name


def test_all_commands_arrive_as_they_were() -> None:
    commands = [
        publish("p", 3, key="k"),
        publish("p", 0),
        update("e", event="A#b", timestamp=5, timecode=None, metadata=b'{"a":1}'),
        DeleteEvent("i", "demo", "p", "e", Caller(Role.PRODUCER, frozenset({"x", "y"}))),
        DeleteEvents("i", "demo", "p", Caller(None, frozenset())),
        AdoptImport("i", "demo", "p", "import", 3),
        UpdateProgram("i", "demo", "p", PROGRAM_CHANGES, Caller(Role.PRODUCER, frozenset({"a", "b"}))),
        UpdateProgram("i", "demo", "p", {"name": "n", "scheduled_end_time": None, "metadata": None}),
        UpdateProgram("i", "demo", "p", {"metadata": {"a": [1, 2.5, "ä"]}, "project_id": None}),
        UpdateProgram("i", "demo", "p", {"scheduled_end_time": datetime(2026, 1, 1, 12, 0, 0, 5000, UTC)}),
        DeleteProgram("i", "demo", "p", Actor("u", "ada")),
        DeleteProgram("i", "demo", "p", of_project="x"),
    ]
    taken, wait_s = there(OWNER_CALLS, "submit", commands, 2.5)
    assert taken == [arrived(command) for command in commands]
    assert wait_s == 2.5


def test_values_of_changes_arrive_with_their_types() -> None:
    command = UpdateProgram("i", "demo", "p", PROGRAM_CHANGES)
    ((received,), _) = there(OWNER_CALLS, "submit", [command], 1.0)
    assert received.changes["access"] is Access.PRIVATE
    assert {name: type(value) for name, value in received.changes.items()} == {
        name: type(value) for name, value in PROGRAM_CHANGES.items()
    }


def test_fields_of_a_program_that_were_not_set_are_not_set_on_arrival() -> None:
    sent = program("p", metadata=None)
    (received,) = back(OWNER_CALLS, "submit", [sent])
    assert received.model_fields_set == sent.model_fields_set


def test_fields_that_a_newer_version_adds_to_a_program_are_left_out() -> None:
    newer = create_model("Program", __base__=Program, field_of_tomorrow=(int, ...))
    sent = program("p")
    written = newer.model_validate(sent.model_dump(exclude_unset=True) | {"field_of_tomorrow": 1})
    assert back(OWNER_CALLS, "submit", [written]) == [sent]


def test_all_answers_arrive_as_they_were() -> None:
    replies = [
        Accepted([b"{}", b"{}"]),
        Kept(201, b"{}"),
        Imported(1, 2, "epoch"),
        program("p", scheduledStartTime="2026-01-01T00:00:00.123Z"),
        b"{}",
        7,
        None,
    ]
    assert back(OWNER_CALLS, "submit", replies) == replies
    entries = [
        Entry(EntryKind.PUSH, "e", 2**53, "event", b"{}"),
        Entry(EntryKind.GONE, "e", 0, "deleted", b""),
    ]
    poll = PollReply(3, [EntryBatch(1, "e", 2, entries)])
    assert back(OWNER_CALLS, "poll", poll) == poll
    assert back(OWNER_CALLS, "poll", None) is None
    assert back(OWNER_CALLS, "history", entries) == entries
    assert back(COUNTER_CALLS, "submit", (b"\0\1", None, b"")) == (b"\0\1", None, b"")


def test_follows_and_heads_arrive_as_they_were() -> None:
    follows = [Follow(1, "demo/program/p", None, strict=True), Follow(2, "demo/channel/x", Cursor("e", 7))]
    assert there(OWNER_CALLS, "open", "session", follows) == ("session", follows)
    batch = VoteBatch("door", 3, (Group(1, 2, True, b"\0\1"), Group(2, 0, False, b"")))
    assert there(COUNTER_CALLS, "submit", batch, 1.0) == (batch, 1.0)
    head, lost = Head("e", 3, Attributes(public=True, project_id=None)), HistoryLost("lost")
    assert back(OWNER_CALLS, "open", [head])[0] == head
    assert fields(back(OWNER_CALLS, "open", [head, lost])[1]) == fields(lost)
    assert back(OWNER_CALLS, "follow", None) is None


@pytest.mark.parametrize("kind", [*KINDS, HistoryLost], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("is_alone", [True, False])
def test_every_error_arrives_as_its_class(kind: type[BrokerError], *, is_alone: bool) -> None:
    sent = kind("text", faults=[FieldFault("a", "b")], retry_after_s=3, log_text="inner")
    received = back(OWNER_CALLS, "submit", sent if is_alone else [None, sent])
    assert fields(received if is_alone else received[1]) == fields(sent)


def test_error_of_a_name_that_is_not_ours_is_an_internal_one() -> None:
    class Newer(Unavailable):
        name = "newer"

    payload = OWNER_CALLS.pack_result(1, Newer("text")).replace(b"newer", b"os.system"[:5])
    _, kind, body = OWNER_CALLS.unpack_reply(payload)
    received = OWNER_CALLS.read_reply("submit", kind, body)
    assert type(received) is InternalError


def test_what_only_one_door_raises_travels_without_what_it_adds() -> None:
    received = back(OWNER_CALLS, "submit", MethodNotAllowed("no", ["GET"]))
    assert type(received) is MethodNotAllowed


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x93\x01\xa4poll",
        b"\x93\x01\xa4poll\x92\xa1s\x01more",
        b"\x91" * 100_000 + b"\x01",
        b"\x80",
    ],
    ids=["empty", "no type", "short", "long", "deep", "map"],
)
def test_what_is_no_call_is_refused(payload: bytes) -> None:
    with pytest.raises(CallError):
        OWNER_CALLS.unpack_call(payload)
    with pytest.raises(CallError):
        OWNER_CALLS.unpack_reply(payload)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("session",),
        ("session", "1"),
        ("session", 1, 2),
        (None, 1),
        ("session", 2**64 - 1.0),
    ],
)
def test_arguments_of_other_types_are_refused(arguments: tuple[object, ...]) -> None:
    _, _, body = OWNER_CALLS.unpack_call(OWNER_CALLS.pack_call(1, "poll", arguments))
    with pytest.raises(CallError):
        OWNER_CALLS.read_arguments("poll", body)


def test_class_outside_the_contract_cannot_be_named() -> None:
    """Neither a Python class nor a model of ours that this contract does not mention."""
    named = Calls(OwnerCalls)
    for data in (["model", "Settings", b"{}"], ["os.system", "true"], ["Follow", 1, "t"]):
        _, kind, body = named.unpack_reply(named.pack_result(1, [data]))
        with pytest.raises(CallError):
            named.read_reply("submit", kind, body)


def test_what_cannot_travel_is_refused_at_the_start() -> None:
    for value in (2**70, "\ud800", object()):
        with pytest.raises(CannotTravel):
            OWNER_CALLS.pack_call(1, "poll", ("session", value))


class _Old(Carried, frozen=True, tag="Thing"):
    name: str


class _New(Carried, frozen=True, tag="Thing"):
    name: str
    colour: str = "none"


@dataclass(frozen=True, slots=True)
class _OldHead:
    epoch: str


@dataclass(frozen=True, slots=True)
class _NewHead:
    epoch: str
    oldest: int = 0


class _OldCalls(Protocol):
    async def swap(self, thing: _Old, head: _OldHead) -> list[_Old | BrokerError]: ...


class _NewCalls(Protocol):
    async def swap(self, thing: _New, head: _NewHead) -> list[_New | BrokerError]: ...


def test_processes_with_and_without_a_new_field_understand_each_other() -> None:
    """While processes are exchanged one after another, both kinds run."""
    old: Calls[Any] = Calls(_OldCalls)
    new: Calls[Any] = Calls(_NewCalls)
    _, _, body = new.unpack_call(old.pack_call(1, "swap", (_Old("a"), _OldHead("e"))))
    assert new.read_arguments("swap", body) == (_New("a"), _NewHead("e"))
    _, _, body = old.unpack_call(new.pack_call(1, "swap", (_New("a", "red"), _NewHead("e", 3))))
    assert old.read_arguments("swap", body) == (_Old("a"), _OldHead("e"))
    _, kind, body = old.unpack_reply(new.pack_result(1, [_New("a", "red")]))
    assert old.read_reply("swap", kind, body) == [_Old("a")]
    assert fields(Conflict("x")) == fields(back(new, "swap", [Conflict("x")])[0])


def test_large_batches_keep_their_bytes() -> None:
    metadata = b'{"x":"' + b"y" * 60_000 + b'"}'
    events = tuple(row()._replace(metadata=metadata) for _ in range(100))
    command = Publish("i", "demo", "p", events, None)
    ((received,), _) = there(OWNER_CALLS, "submit", [command], 1.0)
    assert received == arrived(command)
