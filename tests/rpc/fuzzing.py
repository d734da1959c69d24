"""Links under bytes that nobody meant: what strangers send, and what a wire does to records on the way.

`python -m tests.rpc.fuzzing --minutes 10` runs longer than the tests do, with examples that nobody chose.
"""

import argparse
import asyncio
import itertools
import logging
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.errors import NotFound
from broker.owners.calls import OWNER_CALLS
from broker.owners.protocol import Cursor, Entry
from broker.owners.sessions import EntryBatch, Follow, PollReply
from broker.rpc import wire
from broker.rpc.calls import CallError, Calls
from broker.rpc.listener import Listener, _Peer
from broker.rpc.wire import CallerWire, ListenerWire
from broker.voting.counting.calls import COUNTER_CALLS
from tests.owners.support import delete, program, publish, update

SECRET = bytes(range(32))


class Pipe(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.is_over = False

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def writelines(self, parts: Any) -> None:
        self.written.append(b"".join(parts))

    def abort(self) -> None:
        self.is_over = True

    def close(self) -> None:
        self.is_over = True

    def is_closing(self) -> bool:
        return self.is_over

    def take(self) -> bytes:
        written, self.written = b"".join(self.written), []
        return written


class _Ends:
    """Notes what an end hears."""

    def __init__(self, secret: bytes = SECRET) -> None:
        super().__init__(secret)  # type: ignore[call-arg]  # of the end that it is mixed into
        self.heard: list[bytes] = []
        self.is_open = False
        self.pipe = Pipe()
        self.connection_made(self.pipe)  # type: ignore[attr-defined]

    def feed(self, *pieces: bytes) -> None:
        """What the event loop does: nothing more comes after the end."""
        for piece in pieces:
            if not self.pipe.is_over:
                self.data_received(piece)  # type: ignore[attr-defined]

    def _take(self, message: bytes) -> None:
        self.heard.append(message)

    def _open(self) -> None:
        self.is_open = True

    def _end(self) -> None:
        """Nothing is to be let go of."""


class CallerEnd(_Ends, CallerWire):
    """The caller's end of a conversation without a network."""


class ListenerEnd(_Ends, ListenerWire):
    """The listener's end."""


def pieces(whole: bytes, cuts: Sequence[int]) -> list[bytes]:
    """The bytes in pieces; cuts are taken modulo the length."""
    places = sorted({0, len(whole), *(cut % (len(whole) + 1) for cut in cuts)})
    return [whole[start:end] for start, end in itertools.pairwise(places)]


def conversation() -> tuple[CallerEnd, ListenerEnd]:
    """Two ends that have proved themselves to each other."""
    caller, listener = CallerEnd(), ListenerEnd()
    listener.feed(caller.pipe.take())
    caller.feed(listener.pipe.take())
    listener.feed(caller.pipe.take())
    assert caller.is_open
    assert listener.is_open
    return caller, listener


CUTS = st.lists(st.integers(0, 1 << 16), max_size=8)
GREETINGS = st.builds(
    lambda version, public: wire._GREETING.pack(wire.MAGIC, version, public),
    st.sampled_from([wire.VERSION, 0, 2, 65_535]),
    st.binary(min_size=32, max_size=32),
)
STRANGERS = st.one_of(
    st.binary(max_size=400), st.builds(lambda a, b: a + b, GREETINGS, st.binary(max_size=400))
)


@given(STRANGERS, CUTS)
def stranger_is_never_heard(said: bytes, cuts: list[int]) -> None:
    """Whatever comes, it is a clean end or a wait for more, and little is kept."""
    for end in (ListenerEnd(), CallerEnd()):
        end.feed(*pieces(said, cuts))
        assert not end.is_open
        assert not end.heard
        assert len(end._received) <= wire.GREETING_BYTES + wire.PROOF_BYTES or end.pipe.is_over


@given(st.lists(st.binary(max_size=3_000), max_size=8), CUTS)
def messages_arrive_however_they_are_cut(messages: list[bytes], cuts: list[int]) -> None:
    """The same messages, for every way in which a network cuts the stream."""
    caller, listener = conversation()
    for message in messages:
        caller.send(message)
    listener.feed(*pieces(caller.pipe.take(), cuts))
    assert listener.heard == messages


DAMAGES: dict[str, Callable[[list[bytes], int], list[bytes]]] = {
    "changed": lambda records, at: _changed(records, at),
    "left out": lambda records, at: records[: at % len(records)] + records[at % len(records) + 1 :],
    "repeated": lambda records, at: [*records[: at % len(records) + 1], *records[at % len(records) :]],
    "swapped": lambda records, at: _swapped(records, at % len(records)),
    "inserted": lambda records, at: [
        *records[: at % len(records)],
        b"\0\0\0\0" + bytes(16),
        *records[at % len(records) :],
    ],
}


def _changed(records: list[bytes], at: int) -> list[bytes]:
    whole = bytearray(b"".join(records))
    whole[at // 8 % len(whole)] ^= 1 << at % 8
    return [bytes(whole)]


def _swapped(records: list[bytes], at: int) -> list[bytes]:
    other = (at + 1) % len(records)
    swapped = list(records)
    swapped[at], swapped[other] = swapped[other], swapped[at]
    return swapped


@given(
    st.lists(st.binary(max_size=300), min_size=1, max_size=6, unique=True),
    st.sampled_from(sorted(DAMAGES)),
    st.integers(0, 1 << 20),
    CUTS,
)
def damaged_stream_says_nothing_that_was_not_sent(
    messages: list[bytes], kind: str, at: int, cuts: list[int]
) -> None:
    """What is heard is a beginning of what was sent; behind the damage nothing is."""
    caller, listener = conversation()
    for message in messages:
        caller.send(message)
    records, caller.pipe.written = caller.pipe.written, []
    damaged = DAMAGES[kind](records, at)
    listener.feed(*pieces(b"".join(damaged), cuts))
    assert listener.heard == messages[: len(listener.heard)]
    if damaged != records and b"".join(damaged) != b"".join(records):
        # All may have been heard before a repetition or an insertion at the end; then the end is refused.
        assert listener.pipe.is_over or len(listener.heard) < len(messages)


@given(st.data())
def handshake_with_one_bit_changed_opens_for_nobody(data: st.DataObject) -> None:
    """Each bit of both greetings and both proofs counts.

    X25519 ignores the highest bit of a key (RFC 7748, section 5); the keys are made over both greetings.
    """
    caller, listener = CallerEnd(), ListenerEnd()
    changed = data.draw(st.integers(0, 2))
    for step, (sender, receiver) in enumerate(((caller, listener), (listener, caller), (caller, listener))):
        said = bytearray(sender.pipe.take())
        if step == changed and said:
            at = data.draw(st.integers(0, 8 * len(said) - 1))
            said[at // 8] ^= 1 << at % 8
        receiver.feed(bytes(said))
    assert not listener.is_open
    assert not listener.heard


# X25519 ignores the highest bit of a key (RFC 7748, section 5); the transcript does not.

MESSAGES: list[tuple[Calls[Any], bytes]] = [
    (
        OWNER_CALLS,
        OWNER_CALLS.pack_call(1, "submit", ([publish("p", 3, key="k"), update("e"), delete("e")], 1.0)),
    ),
    (OWNER_CALLS, OWNER_CALLS.pack_call(2, "open", ("s", [Follow(1, "demo/program/p", Cursor("e", 3))]))),
    (OWNER_CALLS, OWNER_CALLS.pack_call(3, "poll", ("s", 7))),
    (OWNER_CALLS, OWNER_CALLS.pack_result(1, [program(), NotFound("gone"), b"{}", 3, None])),
    (
        OWNER_CALLS,
        OWNER_CALLS.pack_result(2, PollReply(1, [EntryBatch(1, "e", 1, [Entry(0, "e", 1, "m", b"{}")])])),
    ),
    (COUNTER_CALLS, COUNTER_CALLS.pack_result(3, (b"\0\1", None))),
]


@given(st.sampled_from(MESSAGES), st.binary(max_size=200), st.integers(0, 1 << 16), st.sampled_from("=+^"))
def message_is_read_or_refused(known: tuple[Calls[Any], bytes], noise: bytes, at: int, how: str) -> None:
    """Bytes behind the seal, wholly arbitrary or nearly right: typed values or a CallError, nothing else."""
    calls, message = known
    at %= len(message)
    if how == "=":
        message = noise
    elif how == "+":
        message = message[:at] + noise + message[at:]
    else:
        message = message[:at] + bytes(a ^ b for a, b in zip(message[at:], noise, strict=False))
    for unpack, read in ((calls.unpack_call, _read_call), (calls.unpack_reply, _read_reply)):
        try:
            read(calls, unpack(message))
        except CallError:
            continue


def _read_call(calls: Calls[Any], call: Any) -> None:
    for method in {call[1], *calls.methods}:
        try:
            assert isinstance(calls.read_arguments(method, call[2]), tuple)
        except CallError:
            continue


def _read_reply(calls: Calls[Any], reply: Any) -> None:
    for method in calls.methods:
        try:
            calls.read_reply(method, *reply[1:])
        except CallError:
            continue


@given(st.binary(min_size=1, max_size=400))
def one_of_ours_that_talks_nonsense_calls_nothing(said: bytes) -> None:
    """A message that is no call ends the connection; a call that cannot be read fails."""

    class Called:
        def __getattr__(self, name: str) -> Any:
            async def method(*_: object) -> None:
                raise AssertionError(name)

            return method

    async def talk() -> None:
        listener: Listener[Any] = Listener("127.0.0.1", COUNTER_CALLS, Called())
        peer, caller = _Peer(listener._secret, listener), CallerEnd(listener._secret)
        pipe = Pipe()
        peer.connection_made(pipe)
        peer.data_received(caller.pipe.take())
        caller.feed(pipe.take())
        peer.data_received(caller.pipe.take())
        caller.send(said)
        peer.data_received(caller.pipe.take())
        await asyncio.gather(*listener._calls)
        caller.feed(pipe.take())
        assert pipe.is_over or [COUNTER_CALLS.unpack_reply(each)[1] for each in caller.heard] == [2]

    asyncio.run(talk())


PROPERTIES: tuple[Callable[[], None], ...] = (
    stranger_is_never_heard,
    messages_arrive_however_they_are_cut,
    damaged_stream_says_nothing_that_was_not_sent,
    handshake_with_one_bit_changed_opens_for_nobody,
    message_is_read_or_refused,
    one_of_ours_that_talks_nonsense_calls_nothing,
)


def _main(minutes: float) -> None:
    logging.disable(logging.ERROR)  # calls that fail are what this is about
    ends_s = time.monotonic() + 60 * minutes
    longer = settings(
        max_examples=2_000, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    checks = [longer(check) for check in PROPERTIES]
    rounds = 0
    while time.monotonic() < ends_s:
        for check in checks:
            check()
        rounds += 1
    sys.stdout.write(f"{rounds * 2_000} examples of each of {len(PROPERTIES)} properties hold\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10.0)
    _main(parser.parse_args().minutes)
