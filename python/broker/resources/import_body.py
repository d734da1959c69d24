"""Reads the body of an import as it arrives: `{"programId"?: …, "events": [ … ]}`.

Names, members and the elements of `events` are values, which are read by the rules and the reader of every
other body (`broker.domain.strict_json`); only the two brackets, commas and colons between them are looked
at here. So at most one element is in memory beside the part that has just arrived. A value that has not
come whole is looked at again when there is twice as much of it, or the body has ended, or it is over its
limit: a sender that trickles bytes costs no more than one that does not.

    OPENING -{-> FIRST_KEY -key-> COLON -:-> VALUE -value-> AFTER_VALUE -,-> KEY …  -}-> END
                                               | events: [
                                               v
                                FIRST_ELEMENT -element-> AFTER_ELEMENT -,-> ELEMENT …  -]-> AFTER_VALUE
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from enum import Enum, auto

from broker.domain.strict_json import load_json, value_end
from broker.errors import FieldFault, InvalidRequest, PayloadTooLarge

_SPACE = re.compile(rb"[ \t\n\r]*")
_LIST = "events"
_GATHERED_BYTES = 64 << 10


class _State(Enum):
    OPENING = auto()
    FIRST_KEY = auto()
    KEY = auto()
    COLON = auto()
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
        self._enough = 0  # bytes from here on, before which it is not worth while to look for a value's end

    def feed(self, chunk: bytes, *, is_last: bool = False) -> Iterator[tuple[str, object]]:
        """What `chunk` completes: members as (name, value), elements as (`events[3]`, value).

        An empty `events` gives (`events`, []).

        Args:
            is_last: nothing comes after it.

        Raises:
            InvalidRequest: it is not an object with a list of events, or a value is refused.
            PayloadTooLarge: a member or an element is over the limit.
        """
        self._buffer = self._buffer[self._at :] + chunk
        self._at = 0
        if is_last:
            self._enough = 0
        while self._step_over_space():
            found = self._step()
            if found is None:
                break
            if found[0]:
                yield found
        self._check_size(len(self._buffer))
        if is_last and self._state is not _State.END:
            raise _malformed("it ends too early")

    def _step_over_space(self) -> bool:
        """Whether something stands after the white space."""
        match = _SPACE.match(self._buffer, self._at)
        assert match is not None, "the pattern matches nothing at all, too"
        self._at = match.end()
        return self._at < len(self._buffer)

    def _step(self) -> tuple[str, object] | None:
        """Pass one thing: a member or element with its name, anything else without; None lacks bytes."""
        byte = self._buffer[self._at : self._at + 1]
        match self._state:
            case _State.OPENING:
                if byte != b"{":
                    raise InvalidRequest.of_field("body", "must be an object")
                return self._pass(True, _State.FIRST_KEY)
            case _State.FIRST_KEY if byte == b"}":
                return self._pass(True, _State.END)
            case _State.FIRST_KEY | _State.KEY:
                return self._pass_key(byte)
            case _State.COLON:
                return self._pass(byte == b":", _State.VALUE, "a colon is missing")
            case _State.VALUE if self._key == _LIST and byte == b"[":
                return self._pass(True, _State.FIRST_ELEMENT)
            case _State.FIRST_ELEMENT if byte == b"]":
                self._pass(True, _State.AFTER_VALUE)
                return _LIST, []
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

    def _pass(self, is_right: bool, state: _State, fault: str = "a comma is missing") -> tuple[str, object]:
        if not is_right:
            raise _malformed(fault)
        self._at += 1
        self._state = state
        return "", None

    def _pass_key(self, byte: bytes) -> tuple[str, object] | None:
        if byte != b'"':
            raise _malformed("a name is missing")
        found = self._take_value("body")
        if found is None:
            return None
        self._key = str(found[1])
        if self._key in self._keys:
            raise InvalidRequest.of_field(self._key, "must not be repeated")
        self._keys.add(self._key)
        self._state = _State.COLON
        return "", None

    def _pass_value(self, state: _State) -> tuple[str, object] | None:
        found = self._take_value(self._field())
        if found is None:
            return None
        if state is _State.AFTER_ELEMENT:
            self._index += 1
        self._state = state
        return found

    def _take_value(self, field: str) -> tuple[str, object] | None:
        """The value that begins here; None when its end has not come, as far as it is worth while to look."""
        unread_bytes = len(self._buffer) - self._at
        if unread_bytes < self._enough:
            return None
        end = value_end(self._buffer, self._at, field)
        if end is None:
            self._enough = min(2 * unread_bytes, self._limit_bytes + 1)
            return None
        self._check_size(end)
        value = load_json(self._buffer[self._at : end], field)
        self._at = end
        self._enough = 0
        return field, value

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
    """The members of a body. Raises as `ImportScanner.feed` does."""
    scanner = ImportScanner(limit_bytes)
    gathered = bytearray()
    async for chunk in chunks:
        gathered += chunk
        if len(gathered) >= _GATHERED_BYTES:
            for found in scanner.feed(bytes(gathered)):
                yield found
            gathered.clear()
    for found in scanner.feed(bytes(gathered), is_last=True):
        yield found


def _malformed(message: str) -> InvalidRequest:
    return InvalidRequest.of_field("body", f"is not JSON: {message}")
