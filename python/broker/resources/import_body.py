"""Reads the body of an import as it comes: `{"programId"?: …, "events": [ … ]}`.

The scanner finds where each member of the object and each element of `events` begins and ends, by strings and
brackets alone, and hands out their bytes; whether those are JSON, the JSON parser says that reads every other
body. So at most one element is in memory beside the part that has just arrived. A sender that trickles bytes
costs no more than one that does not: parts are gathered, what has been looked at is not looked at again, and
the patterns do not backtrack.

    OPENING -{-> FIRST_KEY -key:-> VALUE -value-> AFTER_VALUE -,-> KEY -key:-> VALUE …  -}-> END
                                     | events: [
                                     v
                      FIRST_ELEMENT -element-> AFTER_ELEMENT -,-> ELEMENT …  -]-> AFTER_VALUE
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from enum import Enum, auto

from broker._native import pass_json
from broker.domain.strict_json import parse_json
from broker.errors import FieldFault, InvalidRequest, PayloadTooLarge

_SPACE = re.compile(rb"[ \t\n\r]*")
_KEY = re.compile(rb'("[^"\\]*+(?:\\.[^"\\]*+)*+")[ \t\n\r]*+:', re.DOTALL)
_SCALAR = re.compile(rb"[^ \t\n\r,\]}\[{\":]+")
_LIST = "events"
_GATHERED_BYTES = 64 << 10


class _State(Enum):
    OPENING = auto()
    FIRST_KEY = auto()
    KEY = auto()
    VALUE = auto()
    AFTER_VALUE = auto()
    FIRST_ELEMENT = auto()
    ELEMENT = auto()
    AFTER_ELEMENT = auto()
    END = auto()


class ImportScanner:
    """The sans-I/O half: bytes in, members out.

    Args:
        limit_bytes: the largest member or element.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._buffer = b""
        self._at = 0
        self._state = _State.OPENING
        self._key = ""
        self._keys: set[str] = set()
        self._index = 0
        # Of the value that is being passed: how far it has been looked at, how deep that is, and whether that
        # is inside a string.
        self._scanned = 0
        self._depth = 0
        self._in_string = False

    def feed(self, chunk: bytes) -> Iterator[tuple[str, bytes]]:
        """What `chunk` completes: members as (name, JSON), elements as (`events[3]`, JSON).

        An empty `events` gives (`events`, `[]`).

        Raises:
            InvalidRequest: it is not an object with a list of events.
            PayloadTooLarge: a member or an element is over the limit.
        """
        self._buffer = self._buffer[self._at :] + chunk
        self._scanned -= self._at
        self._at = 0
        while self._step_over_space():
            found = self._step()
            if found is None:
                break
            if found[0]:
                yield found
        self._check_size(len(self._buffer))

    def close(self) -> None:
        """The body has ended. Raises InvalidRequest when it is not complete."""
        if self._state is not _State.END:
            raise _malformed("it ends too early")

    def _step_over_space(self) -> bool:
        """Whether something stands after the white space."""
        match = _SPACE.match(self._buffer, self._at)
        assert match is not None, "the pattern matches nothing at all, too"
        self._at = match.end()
        return self._at < len(self._buffer)

    def _step(self) -> tuple[str, bytes] | None:
        """Pass one thing: a member or element with its name, anything else without; None lacks bytes."""
        byte = self._buffer[self._at : self._at + 1]
        match self._state:
            case _State.OPENING:
                return self._pass(byte == b"{", _State.FIRST_KEY, "must be an object")
            case _State.FIRST_KEY if byte == b"}":
                return self._pass(True, _State.END)
            case _State.FIRST_KEY | _State.KEY:
                return self._pass_key()
            case _State.VALUE if self._key == _LIST and byte == b"[":
                return self._pass(True, _State.FIRST_ELEMENT)
            case _State.FIRST_ELEMENT if byte == b"]":
                self._pass(True, _State.AFTER_VALUE)
                return _LIST, b"[]"
            case _State.VALUE:
                return self._pass_value(_State.AFTER_VALUE)
            case _State.FIRST_ELEMENT | _State.ELEMENT:
                return self._pass_value(_State.AFTER_ELEMENT)
            case _State.AFTER_VALUE if byte == b"}":
                return self._pass(True, _State.END)
            case _State.AFTER_VALUE:
                return self._pass(byte == b",", _State.KEY)
            case _State.AFTER_ELEMENT if byte == b"]":
                return self._pass(True, _State.AFTER_VALUE)
            case _State.AFTER_ELEMENT:
                return self._pass(byte == b",", _State.ELEMENT)
            case _State.END:
                raise _malformed("there is data after its end")

    def _pass(self, is_right: bool, state: _State, message: str = "") -> tuple[str, bytes]:
        if not is_right:
            raise InvalidRequest.of_field("body", message) if message else _malformed("a comma is missing")
        self._at += 1
        self._state = state
        return "", b""

    def _pass_key(self) -> tuple[str, bytes] | None:
        match = _KEY.match(self._buffer, self._at)
        if match is None:
            if self._buffer[self._at : self._at + 1] != b'"':
                raise _malformed("a name is missing")
            return None
        self._key = str(parse_json(match[1]))
        if self._key in self._keys:
            raise InvalidRequest.of_field(self._key, "must not be repeated")
        self._keys.add(self._key)
        self._at = match.end()
        self._state = _State.VALUE
        return "", b""

    def _pass_value(self, state: _State) -> tuple[str, bytes] | None:
        end = self._value_end()
        if end is None:
            return None
        self._check_size(end)
        found = self._field(), self._buffer[self._at : end]
        if state is _State.AFTER_ELEMENT:
            self._index += 1
        self._at = end
        self._state = state
        return found

    def _value_end(self) -> int | None:
        """Where the value ends that begins here; None when its end has not come."""
        if self._buffer[self._at : self._at + 1] not in (b"{", b"[", b'"'):
            match = _SCALAR.match(self._buffer, self._at)
            if match is None:
                raise _malformed("a value is missing")
            return match.end() if match.end() < len(self._buffer) else None
        self._scanned, self._depth, self._in_string = pass_json(
            self._buffer, max(self._scanned, self._at), self._depth, self._in_string
        )
        is_over = self._depth == 0 and not self._in_string and self._scanned > self._at
        return self._scanned if is_over else None

    def _check_size(self, end: int) -> None:
        if end - self._at > self._limit_bytes:
            field, message = self._field(), f"must not be over {self._limit_bytes} bytes"
            raise PayloadTooLarge(f"{field}: {message}", faults=[FieldFault(field, message)])

    def _field(self) -> str:
        is_element = self._state in (_State.FIRST_ELEMENT, _State.ELEMENT)
        return f"{_LIST}[{self._index}]" if is_element else self._key or "body"


async def import_members(
    chunks: AsyncIterator[bytes], limit_bytes: int
) -> AsyncGenerator[tuple[str, object]]:
    """The members of a body, parsed. Raises as `ImportScanner.feed` does, and for what is not JSON."""
    scanner = ImportScanner(limit_bytes)
    gathered = bytearray()
    async for chunk in chunks:
        gathered += chunk
        if len(gathered) >= _GATHERED_BYTES:
            for field, text in scanner.feed(bytes(gathered)):
                yield field, parse_json(text, field)
            gathered.clear()
    for field, text in scanner.feed(bytes(gathered)):
        yield field, parse_json(text, field)
    scanner.close()


def _malformed(message: str) -> InvalidRequest:
    return InvalidRequest.of_field("body", f"is not JSON: {message}")
