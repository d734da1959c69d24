"""The JSON of pushes, encoded once for the publisher's reply and every viewer's notification."""

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b

import orjson

from broker.clock import to_datetime
from broker.domain.history import EventRow, HeadRow, PushRow
from broker.domain.values import format_time
from broker.owners.protocol import Attributes, Entry, EntryKind


def batch_json(events: Iterable[bytes]) -> bytes:
    """What publishing many events is answered with, from the JSON of each."""
    return b'{"events":[' + b",".join(events) + b"]}"


def event_json(epoch: str, program_id: str, row: EventRow, seq: int) -> bytes:
    """The event as readers see it. `seq` is the push's: of an `eventUpdated`, it is not `row.seq`."""
    return orjson.dumps(
        {
            "seq": seq,
            "epoch": epoch,
            "id": row.id,
            "programId": program_id,
            "createdTime": _time(row.created_ms),
            "timestamp": row.timestamp,
            "timecode": row.timecode,
            "event": row.event,
            "metadata": orjson.Fragment(row.metadata),
        }
    )


def deleted_json(epoch: str, program_id: str, event_id: str, seq: int) -> bytes:
    """The params of `eventDeleted`."""
    return orjson.dumps({"seq": seq, "epoch": epoch, "programId": program_id, "id": event_id})


RESUMED = "resumed"
"""The notification of a channel that others before it may be missing."""

_METHODS = {"event": "event", "updated": "eventUpdated", "deleted": "eventDeleted"}


_ID = b'"id":"'
_TRACE = "trace"


def message_id(params: bytes) -> str:
    """The id of the event that a push is about, empty where the params have none.

    It stands before everything that a producer has written, and before it nothing has a quotation mark.
    """
    start = params.find(_ID) + len(_ID)
    return "" if start < len(_ID) else params[start : params.index(b'"', start)].decode()


def notice_id(params: bytes) -> str:
    """Tells what a channel has told under a number from anything else told under it: rows have no id."""
    return blake2b(params, digest_size=12).hexdigest()


def told_id(entry: Entry) -> str | None:
    """The id that a cursor has of who has taken this entry last; None of one that changes no cursor."""
    if entry.kind == EntryKind.PUSH:
        return message_id(entry.params)
    if entry.kind == EntryKind.RESET:
        return ""
    if entry.kind == EntryKind.NOTICE:  # of a channel: a program's topic has none
        return "" if entry.method == RESUMED else notice_id(entry.params)
    return None


def push_json(epoch: str, program_id: str, push: PushRow) -> bytes:
    """The params of a push that is read back, byte for byte as they were sent where they were kept.

    One that was told in an epoch whose end was lost belongs to the epoch that goes on from there.
    """
    if push.told is not None:
        fields = orjson.loads(push.told)
        return push.told if fields["epoch"] == epoch else orjson.dumps(fields | {"epoch": epoch})
    if push.event is None:
        return deleted_json(epoch, program_id, push.event_id, push.seq)
    return event_json(epoch, program_id, push.event, push.seq)


def push_entry(epoch: str, program_id: str, push: PushRow) -> Entry:
    """The entry of a push that is read back."""
    params = push_json(epoch, program_id, push)
    return Entry(EntryKind.PUSH, epoch, push.seq, _METHODS[push.kind], params)


def reset_entry(program_id: str, epoch: str, reason: str, base: int, deleted: int) -> Entry:
    """The entry that begins an epoch by an import (`imported`), an erasure (`erased`) or a loss (`lost`)."""
    if reason != "erased":
        params = {"programId": program_id, "epoch": epoch, "seq": base}
        return Entry(EntryKind.RESET, epoch, base, "historyReplaced", orjson.dumps(params))
    params = {"programId": program_id, "deleted": deleted, "epoch": epoch, "seq": base}
    return Entry(EntryKind.RESET, epoch, base, "eventsDeleted", orjson.dumps(params))


def gone_entry(program_id: str, epoch: str, seq: int) -> Entry:
    """The entry that ends a program's topic."""
    return Entry(EntryKind.GONE, epoch, seq, "programDeleted", orjson.dumps({"programId": program_id}))


def attributes_entry(epoch: str, seq: int, attributes: Attributes) -> Entry:
    """The entry that tells a topic's new attributes; its `seq` is where the topic stands."""
    return Entry(EntryKind.ATTRIBUTES, epoch, seq, "", orjson.dumps(_fields_of(attributes)))


def trace_entry(epoch: str, seq: int, attributes: Attributes, trace: str) -> Entry:
    """The entry before the pushes of a publish that is traced; `trace` names the span of the publish.

    It repeats the topic's attributes: a gateway that knows no traces takes it for news that it has already.
    """
    fields = _fields_of(attributes) | {_TRACE: trace}
    return Entry(EntryKind.ATTRIBUTES, epoch, seq, "", orjson.dumps(fields))


def find_traces(entries: Iterable[Entry]) -> list[str]:
    """The spans of publishes that are traced, in the order of their entries."""
    told = (orjson.loads(entry.params) for entry in entries if entry.kind == EntryKind.ATTRIBUTES)
    return [fields[_TRACE] for fields in told if _TRACE in fields]


def _fields_of(attributes: Attributes) -> dict[str, object]:
    return {
        "public": attributes.public,
        "projectId": attributes.project_id,
        "freeContexts": attributes.free_contexts,
    }


def parse_attributes(params: bytes) -> Attributes:
    """The attributes of an ATTRIBUTES entry."""
    fields = orjson.loads(params)
    return Attributes(fields["public"], fields["projectId"], fields.get("freeContexts", False))


def attributes_of(head: HeadRow) -> Attributes:
    """The attributes of a program's topic."""
    return Attributes(head.public, head.project_id, head.free_contexts)


@lru_cache(maxsize=1024)
def _time(ms: int) -> str:
    return format_time(to_datetime(ms))
