"""The judge of a show: what the logs of producers and viewers and the database must say about each other.

All of it is about one program that has only been published to and corrected, never erased or replaced:

* pushes in the database count 1, 2, 3 … without a gap;
* an acknowledged event is stored exactly once, under the seq and the id that its producer was told;
* a publish without an acknowledgement is wholly there or wholly absent; a batch is contiguous;
* nothing is stored that nobody published;
* what was acknowledged before another publish was sent comes before it;
* every viewer saw exactly the pushes of the database, in order.

The judge answers with findings, lines for people; none means that the show was right.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

FINDINGS = 20  # of one program; one fault makes many


class Publish(NamedTuple):
    """One publish in its producer's log.

    Attributes:
        first, size: the producer numbers its events; these are `first` to `first + size - 1`.
        sent_s: when it was sent for the first time.
        answered_s: when it was acknowledged; None when it never was.
        seqs, ids: what the acknowledgement said, else empty.
    """

    by: int
    first: int
    size: int
    sent_s: float
    answered_s: float | None
    seqs: Sequence[int]
    ids: Sequence[int]


class Stored(NamedTuple):
    """An event in the database, with its producer and that producer's number."""

    seq: int
    id: int
    by: int
    number: int


class Push(NamedTuple):
    """A push: of an event, or of a correction to the event `id`."""

    seq: int
    id: int


def short_id(event_id: str) -> int:
    """The random part of an event's UUID, which tells events apart in eight bytes."""
    return int(event_id[19:23] + event_id[24:], 16)


def judge(
    publishes: Iterable[Publish],
    stored: Sequence[Stored],
    pushes: Sequence[Push],
    seen: Mapping[str, Sequence[Push]],
) -> list[str]:
    """The findings about one program.

    Args:
        publishes: of all its producers, in any order.
        stored: its events, ascending by seq.
        pushes: of the database, ascending by seq.
        seen: what each viewer was told, in the order of arrival.
    """
    publishes = sorted(publishes, key=lambda publish: publish.sent_s)
    findings: list[str] = []
    for found in (
        _unbroken(pushes),
        _published(publishes, stored),
        _ordered(publishes, stored),
        *(_watched(viewer, log, pushes) for viewer, log in seen.items()),
    ):
        for finding in found:
            if len(findings) == FINDINGS:
                return [*findings, "and more"]
            findings.append(finding)
    return findings


def _unbroken(pushes: Sequence[Push]) -> Iterator[str]:
    for place, push in enumerate(pushes, 1):
        if push.seq != place:
            yield f"the database: push {place} has seq {push.seq}"
            return


def _published(publishes: Sequence[Publish], stored: Sequence[Stored]) -> Iterator[str]:
    """Stored exactly once, as told, whole and by somebody."""
    found: dict[tuple[int, int], Stored] = {}
    for event in stored:
        if (event.by, event.number) in found:
            yield f"doubled: event {event.number} of producer {event.by} has seq {event.seq} too"
        found[event.by, event.number] = event
    for publish in publishes:
        events = [found.pop((publish.by, publish.first + n), None) for n in range(publish.size)]
        there = [event for event in events if event is not None]
        name = f"publish {publish.first} of producer {publish.by}"
        if publish.answered_s is not None:
            told = list(zip(publish.seqs, publish.ids, strict=True))
            if len(there) < publish.size:
                yield f"lost: {name} was acknowledged, {len(there)} of {publish.size} events are stored"
            elif [(event.seq, event.id) for event in there] != told:
                yield f"changed: {name} is stored otherwise than it was acknowledged"
        elif 0 < len(there) < publish.size:
            yield f"half a batch: of {name}, {len(there)} of {publish.size} events are stored"
        if there and [event.seq for event in there] != list(range(there[0].seq, there[0].seq + len(there))):
            yield f"torn: {name} is stored out of order or with others in between"
    for by, number in found:
        yield f"foreign: nobody published event {number} of producer {by}"


def _ordered(publishes: Sequence[Publish], stored: Sequence[Stored]) -> Iterator[str]:
    """Real-time order: an acknowledgement comes before whatever was sent after it."""
    seqs = {(event.by, event.number): event.seq for event in stored}
    answered = sorted((p.answered_s, p.seqs[-1]) for p in publishes if p.answered_s is not None and p.seqs)
    place = highest = 0
    for publish in publishes:
        while place < len(answered) and answered[place][0] < publish.sent_s:
            highest = max(highest, answered[place][1])
            place += 1
        seq = seqs.get((publish.by, publish.first))
        if seq is not None and seq < highest:
            yield (
                f"reordered: publish {publish.first} of producer {publish.by} has seq {seq}, but was sent"
                f" after {highest} had been acknowledged"
            )


def _watched(viewer: str, log: Sequence[Push], pushes: Sequence[Push]) -> Iterator[str]:
    if list(log) == list(pushes):
        return
    for place, (told, push) in enumerate(zip(log, pushes, strict=False), 1):
        if told == push:
            continue
        if told.seq == push.seq:
            yield f"{viewer}: push {place} is of another event than the database's"
        elif told.seq < push.seq:
            yield f"{viewer}: doubled or reordered: told {told.seq} where {push.seq} was due"
        else:
            yield f"{viewer}: gap: told {told.seq} where {push.seq} was due"
        return
    more = "more" if len(log) > len(pushes) else "only"
    yield f"{viewer}: was told {more} {len(log)} of {len(pushes)} pushes"
