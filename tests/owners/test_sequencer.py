"""The sequencer against an obvious model: one dictionary of events and one list of pushes a program.

Commands that touch a whole program come as groups of their own, which is the writer's promise.
"""

from dataclasses import dataclass, field
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from broker.domain.history import EventRow, GroupState, HeadRow, Writes
from broker.domain.idempotency import KeptResult
from broker.domain.programs import Access
from broker.domain.users import Role
from broker.errors import BrokerError, Conflict, InsufficientScope, NotFound, Unavailable
from broker.owners.commands import Accepted, AdoptImport, Command, DeleteProgram, Imported, UpdateProgram
from broker.owners.protocol import Caller, Entry, EntryKind
from broker.owners.sequencer import Sequencer
from tests.owners.support import delete, delete_all, ids, program, publish, row, update

PROGRAMS = ["a", "b"]


@dataclass
class Tables:
    """What the database would hold, as far as the sequencer sees it."""

    heads: dict[tuple[str, str], HeadRow] = field(default_factory=dict)
    events: dict[tuple[int, str], EventRow] = field(default_factory=dict)
    keys: dict[tuple[str, str, str], tuple[bytes, KeptResult]] = field(default_factory=dict)

    def found(self) -> GroupState:
        found = GroupState(dict(self.heads), dict(self.events), dict(self.keys))
        for head in self.heads.values():
            found.counts[head.uid] = sum(history == head.history for history, _ in self.events)
        found.programs = {head.uid: program(id_) for (_, id_), head in self.heads.items()}
        return found

    def apply(self, writes: Writes) -> None:
        self.events |= writes.events | writes.updated
        for key in writes.deleted:
            del self.events[key]
        by_uid = {head.uid: key for key, head in self.heads.items()}
        for uid, move in writes.moves.items():
            old = self.heads[by_uid[uid]]
            history = old.history + 10 if uid in writes.erased else old.history
            moved = HeadRow(uid, history, *move[1:], old.public, old.project_id, "")
            self.heads[by_uid[uid]] = moved
        for kept in writes.keys:
            self.keys[kept.account, kept.caller, kept.key] = (
                kept.request_hash,
                KeptResult(kept.status, kept.result),
            )


def tables() -> Tables:
    heads = {
        ("demo", name): HeadRow(uid, uid + 4, f"epoch-{name}", "created", 0, 0, 0, None, True, None, "")
        for uid, name in enumerate(PROGRAMS, 1)
    }
    return Tables(heads)


def run(found: GroupState, *commands: Any, now_ms: int = 1_000) -> Sequencer:
    sequencer = Sequencer(found, now_ms, ids.epoch)
    for command in commands:
        sequencer.add(command)
    return sequencer


STEP = st.one_of(
    st.tuples(st.just("publish"), st.sampled_from([*PROGRAMS, "none"]), st.integers(0, 3)),
    st.tuples(st.just("update"), st.sampled_from(PROGRAMS), st.integers(0, 5)),
    st.tuples(st.just("delete"), st.sampled_from(PROGRAMS), st.integers(0, 5)),
)
GROUP = st.one_of(
    st.lists(STEP, min_size=1, max_size=8),
    st.tuples(st.tuples(st.just("erase"), st.sampled_from(PROGRAMS), st.just(0))).map(list),
)


@settings(max_examples=200)
@given(st.lists(st.tuples(GROUP, st.integers(-50, 50)), min_size=1, max_size=8))
def test_pushes_are_those_of_the_model(groups: list[tuple[list[Any], int]]) -> None:
    database = tables()
    events: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in PROGRAMS}
    seqs = dict.fromkeys(PROGRAMS, 0)
    made: dict[str, list[str]] = {name: [] for name in PROGRAMS}
    now_ms, accepted = 1_000, dict.fromkeys(PROGRAMS, 0)
    for group, step_ms in groups:
        now_ms += step_ms
        commands: list[Command] = []
        expected: list[tuple[str, tuple[str, int, str | None] | None]] = []
        for kind, name, choice in group:
            if kind == "publish":
                command = publish(name, choice)
                commands.append(command)
                if name == "none":
                    expected.append((name, None))
                    continue
                for event in command.events:
                    seqs[name] += 1
                    made[name].append(event.id)
                    events[name][event.id] = {"seq": seqs[name], "event": event.event}
                    expected.append((name, ("event", seqs[name], event.id)))
            elif kind == "erase":
                commands.append(delete_all(name))
                events[name].clear()
                seqs[name] = 0
                expected.append((name, ("eventsDeleted", 0, None)))
            else:
                known = made[name]
                event_id = known[choice % len(known)] if known else ids.uuid7()
                commands.append(
                    update(event_id, name, event="New#name") if kind == "update" else delete(event_id, name)
                )
                if event_id not in events[name]:
                    expected.append((name, None))
                    continue
                seqs[name] += 1
                if kind == "update":
                    events[name][event_id]["event"] = "New#name"
                    expected.append((name, ("eventUpdated", seqs[name], event_id)))
                else:
                    del events[name][event_id]
                    expected.append((name, ("eventDeleted", seqs[name], event_id)))
        done = run(database.found(), *commands, now_ms=now_ms)
        told = {
            name: [_summary(entry) for entry in done.entries.get(("demo", name), [])] for name in PROGRAMS
        }
        for name in PROGRAMS:
            assert told[name] == [what for of, what in expected if of == name and what is not None]
        refused = sum(isinstance(reply, NotFound) for reply in done.replies)
        assert refused == sum(what is None for _, what in expected)
        database.apply(done.writes)
        for name in PROGRAMS:
            head = database.heads["demo", name]
            stored = {id_: event for (of, id_), event in database.events.items() if of == head.history}
            assert {id_: {"seq": e.seq, "event": e.event} for id_, e in stored.items()} == events[name]
            assert head.seq == seqs[name]
            if head.changed_ms is not None:
                assert head.changed_ms >= accepted[name]
                accepted[name] = head.changed_ms


def _summary(entry: Entry) -> tuple[str, int, str | None]:
    params = orjson.loads(entry.params)
    assert (params["seq"], params["epoch"]) == (entry.seq, entry.epoch)
    return entry.method, entry.seq, params.get("id")


def test_clock_that_steps_back_does_not_turn_time_back() -> None:
    database = tables()
    first = run(database.found(), publish("a"), now_ms=5_000)
    database.apply(first.writes)
    second = run(database.found(), publish("a"), now_ms=4_000)
    (event,) = second.writes.events.values()
    assert event.created_ms == 5_000
    assert event.timestamp == 5_000


def test_empty_batch_does_nothing() -> None:
    done = run(tables().found(), publish("a", 0))
    assert done.replies == [Accepted([])]
    assert done.writes == Writes()


def test_key_of_a_failed_publish_stays_free() -> None:
    done = run(tables().found(), publish("none", key="k"), publish("a", key="k"))
    assert isinstance(done.replies[0], NotFound)
    assert isinstance(done.replies[1], Accepted)


def test_key_with_another_body_conflicts_and_the_rest_goes_on() -> None:
    done = run(tables().found(), publish("a", key="k"), publish("a", key="k", body="x"), publish("a"))
    assert isinstance(done.replies[1], Conflict)
    assert [entry.seq for entry in done.entries["demo", "a"]] == [1, 2]


def test_key_of_another_account_is_another_key() -> None:
    database = tables()
    database.heads["other", "a"] = database.heads["demo", "a"]._replace(uid=9)
    done = run(database.found(), publish("a", key="k"), publish("a", key="k", account="other"))
    assert isinstance(done.replies[1], Accepted)


def test_event_that_was_told_before_is_not_told_again() -> None:
    command = publish("a", 2)
    found = tables().found()
    found.told = {event.id: b"told " + event.id.encode() for event in command.events}
    done = run(found, command)
    assert done.replies == [Accepted([found.told[event.id] for event in command.events])]
    assert done.writes == Writes()
    assert not done.entries


def test_import_begins_at_the_number_of_its_rows() -> None:
    found = tables().found()
    found.staged["i"] = (77, 3)
    done = run(found, AdoptImport(ids.uuid7(), "demo", "a", "i", 3))
    assert (done.writes.adoptions, done.writes.erased) == ([(1, 77, "i")], [])
    (move,) = done.writes.moves.values()
    assert (move.reason, move.base, move.seq, move.deleted) == ("imported", 3, 3, 0)
    assert done.replies == [Imported(deleted=0, imported=3, epoch=move.epoch)]
    (entry,) = done.entries["demo", "a"]
    assert (entry.kind, entry.seq, entry.epoch) == (EntryKind.RESET, 3, move.epoch)


def test_import_without_events_erases() -> None:
    done = run(tables().found(), AdoptImport(ids.uuid7(), "demo", "a", "i", 0))
    assert (done.writes.adoptions, done.writes.erased) == ([], [1])
    (move,) = done.writes.moves.values()
    assert (move.reason, move.base, move.seq, move.deleted) == ("imported", 0, 0, 0)


def test_import_with_a_row_too_few_is_refused() -> None:
    for staged in ({"i": (77, 2)}, {}):
        found = tables().found()
        found.staged |= staged
        done = run(found, AdoptImport(ids.uuid7(), "demo", "a", "i", 3))
        assert isinstance(done.replies[0], Unavailable)
        assert done.writes == Writes()


def test_program_update_without_new_attributes_tells_no_follower() -> None:
    done = run(tables().found(), UpdateProgram(ids.uuid7(), "demo", "a", {"name": "New"}))
    assert not done.entries
    assert [change[1] for change in done.writes.program_changes] == ["updated"]


def test_a_caller_who_has_lost_its_rights_changes_nothing() -> None:
    """The four that are of one program alone; `UpdateProgram` also into a project of others."""
    producer = Caller(Role.PRODUCER, frozenset({"own"}))
    event = publish("a")
    foreign, own = tables(), tables()
    for database, project_id in ((foreign, "foreign"), (own, "own")):
        database.heads["demo", "a"] = database.heads["demo", "a"]._replace(project_id=project_id)
        database.apply(run(database.found(), event).writes)
    commands: list[Command] = [
        replace(update(event.events[0].id, "a", event="A#b"), caller=producer),
        UpdateProgram(ids.uuid7(), "demo", "a", {"name": "New"}, producer),
        replace(delete(event.events[0].id, "a"), caller=producer),
        replace(delete_all("a"), caller=producer),
        AdoptImport(ids.uuid7(), "demo", "a", "i", 0, producer),
        DeleteProgram(ids.uuid7(), "demo", "a", caller=producer),
    ]
    for command in commands:
        refused = run(foreign.found(), command)
        assert [type(reply) for reply in refused.replies] == [InsufficientScope]
        assert refused.writes == Writes()
        assert not isinstance(run(own.found(), command).replies[0], BrokerError)
    into = UpdateProgram(ids.uuid7(), "demo", "a", {"project_id": "foreign"}, producer)
    assert [type(reply) for reply in run(own.found(), into).replies] == [InsufficientScope]


def test_repeated_command_answers_the_same() -> None:
    database = tables()
    changed: dict[str, object] = {"access": Access.PRIVATE, "metadata": {"a": [1]}}
    found = database.found()
    first = publish("a", 2)
    commands = [
        first,
        update(first.events[0].id, "a", metadata={"x": 1}),
        delete(first.events[1].id, "a"),
        UpdateProgram(ids.uuid7(), "demo", "b", changed),
    ]
    done = run(found, *commands)
    database.apply(done.writes)
    again = run(database.found(), *commands[1:])
    assert again.replies == done.replies[1:]
    assert again.writes == Writes()
    erasure, deletion = delete_all("a"), DeleteProgram(ids.uuid7(), "demo", "b")
    done = run(database.found(), erasure, deletion)
    database.apply(done.writes)
    again = run(database.found(), erasure, deletion)
    assert again.replies == done.replies == [1, None]
    assert again.writes == Writes()


def test_metadata_is_kept_word_for_word() -> None:
    text = b'{"b":1,"a":"\\u00e4","n":1.0}'
    event = row()
    command = replace(publish("a"), events=(type(event)(event.id, None, None, "A#b", text),))
    done = run(tables().found(), command)
    assert text in done.entries["demo", "a"][0].params
