"""JSON from outside, read the same at every door: one meaning, or a refusal.

RFC 8259 leaves open what a repeated name means, how deep a text may be nested and which numbers a reader
keeps. Two readers that decide it differently see two requests in one text, so all three are refused here:

* a name that is repeated within its object;
* an integer beyond ±2^53, which many readers round;
* more than `MAX_DEPTH` objects and arrays inside each other in one value of the caller's own, and
  `ENVELOPE_DEPTH` around it that the request is made of, such as `{"events": [{"metadata": …}]}`.

`orjson` refuses what is no JSON at all: NaN, lone surrogates, invalid UTF-8, byte order marks. It keeps the
last of repeated names and makes floats of integers over 64 bits. Both are found by writing the value again,
which costs about as much as reading it; only a text that looks suspicious is read a second time, slowly.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import orjson

from broker.domain.values import MAX_INTEGER
from broker.errors import InvalidRequest

MAX_DEPTH = 64
ENVELOPE_DEPTH = 3
_MAX_DIGITS = 40  # of an integer that is worth making; Python's own limit on them is no refusal of ours
# A whole string, or a bracket.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\]]', re.DOTALL)
# Every integer that `orjson` makes a float of has so many digits in a row.
_LONG_INTEGER = b"0" * 19
_DIGITS = bytes(ord("0") if byte in b"0123456789" else ord(" ") for byte in range(256))
_ROUND = bytes.maketrans(b"{}[]", b"()()")
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"{}[]")


class _Repeated:
    """Stands for an object that has two members of one name."""

    def __init__(self, name: str) -> None:
        self.name = name


def parse_json(text: bytes, field: str = "") -> Any:
    """The value of a JSON text from outside.

    Args:
        field: path of the text in the request, for the error; empty for a body or params, whose members are
            the request's own.

    Raises:
        InvalidRequest: it is none, or is refused by a rule of this module.
    """
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        deep = _deep_member(text, field)
        if deep is not None:  # the parser's own limit is no error of syntax
            raise _too_deep(deep) from None
        raise InvalidRequest.of_field(field or "body", f"is not JSON: {error}") from None
    limit = MAX_DEPTH + ENVELOPE_DEPTH - bool(field)  # what `field` names is inside the envelope
    if _is_nested_over(text, limit):
        raise _too_deep(_deep_place(value, field, limit))
    if not _is_plain(text, value):
        _check_exactly(text, field)
    return value


def require_depth(value: Any, field: str, limit: int = MAX_DEPTH) -> None:
    """Raise InvalidRequest when more than `limit` objects and arrays are inside each other."""
    if _exceeds(value, limit):
        raise _too_deep(field)


def require_written_depth(text: bytes, field: str) -> None:
    """`require_depth` of the value that has been written as `text`."""
    if _is_nested_over(text, MAX_DEPTH):
        raise _too_deep(field)


def _is_plain(text: bytes, value: Any) -> bool:
    r"""Whether the value is certainly all that the text says; False means that somebody has to look.

    Written again, a value has two quotes for each string and one for each quote inside a string. The text has
    the same, unless it writes a quote as `\u0022`, or a string is gone with a repeated member.
    """
    try:
        again = orjson.dumps(value, option=orjson.OPT_STRICT_INTEGER)
    except TypeError:  # an integer beyond its limit, which is one below ours
        return False
    if again == text:
        return True  # most writers are as terse as ours
    if again.count(b'"') != text.count(b'"') or b"u0022" in text:
        return False
    return _LONG_INTEGER not in text.translate(_DIGITS)


def _check_exactly(text: bytes, field: str) -> None:
    """Read the text again, seeing repeated names and integers of any size; its depth must be bounded."""
    faults: list[object] = []

    def members(pairs: list[tuple[str, Any]]) -> object:
        found = dict(pairs)
        if len(found) == len(pairs):
            return found
        names = [name for name, _ in pairs]
        faults.append(_Repeated(next(name for index, name in enumerate(names) if name in names[:index])))
        return faults[-1]

    def integer(digits: str) -> int:
        number = int(digits) if len(digits) <= _MAX_DIGITS else MAX_INTEGER + 1
        if abs(number) > MAX_INTEGER:
            faults.append(number)
        return number

    value = json.loads(text, object_pairs_hook=members, parse_int=integer)
    if faults:
        _raise_first(value, field)


def require_integers(value: Any, field: str) -> None:
    """Raise InvalidRequest when an integer inside is beyond ±2^53."""
    _raise_first(value, field)


def _raise_first(value: Any, field: str) -> None:
    """Raise InvalidRequest for a fault inside the value, with its path; none is fine too."""
    for path, item in _walk(value, field):
        if isinstance(item, _Repeated):
            raise InvalidRequest.of_field(_member(path, item.name), "must not be repeated")
        if isinstance(item, int) and abs(item) > MAX_INTEGER:
            raise InvalidRequest.of_field(path or "body", f"must be from {-MAX_INTEGER} to {MAX_INTEGER}")


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Everything that is no object and no array, with its path. A stack: depth is the sender's choice."""
    stack = [(path, value)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, dict):
            stack += [(_member(path, name), item) for name, item in value.items()]
        elif isinstance(value, list):
            stack += [(f"{path}[{index}]", item) for index, item in enumerate(value)]
        else:
            yield path, value


def _member(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _is_nested_over(text: bytes, limit: int) -> bool:
    """Whether more than `limit` brackets are inside each other; `text` must be JSON."""
    if text.count(b"[") + text.count(b"{") <= limit:
        return False
    unescaped = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside_strings = b"".join(unescaped.split(b'"')[::2])
    brackets = outside_strings.translate(_ROUND, _NO_BRACKETS)
    for _ in range(limit):
        brackets = brackets.replace(b"()", b"")  # the innermost level
        if not brackets:
            return False
    return True


def _exceeds(value: Any, limit: int) -> bool:
    level, depth = [value], 0
    while level := [one for one in level if isinstance(one, dict | list)]:
        depth += 1
        if depth > limit:
            return True
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
    return False


def _deep_place(value: Any, field: str, limit: int) -> str:
    """The param in which a value is nested too deeply; in a list of objects, the member of which one."""
    if isinstance(value, list) and field and not field.endswith("]"):
        index, value = next((i, item) for i, item in enumerate(value) if _exceeds(item, limit - 1))
        field, limit = f"{field}[{index}]", limit - 1
    if isinstance(value, dict) and (not field or field.endswith("]")):
        name, inner = next((name, item) for name, item in value.items() if _exceeds(item, limit - 1))
        member = _member(field, name)
        return member if field else _deep_place(inner, member, limit - 1)
    return field


def _deep_member(text: bytes, field: str) -> str | None:
    """The outermost member in which the text is nested too deeply; None when it is not.

    Looks at strings and brackets alone: what is too deep may be no JSON further on.
    """
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return None
    limit = MAX_DEPTH + ENVELOPE_DEPTH - bool(field)
    depth, name = 0, ""
    for token in _TOKEN.finditer(text):
        kind = token[0]
        if kind[:1] == b'"':
            if depth == 1:
                name = _name(kind)
            continue
        depth += 1 if kind in b"{[" else -1
        if depth > limit:
            is_member = name and (not field or field.endswith("]"))
            return _member(field, name) if is_member and text.lstrip(b" \t\r\n")[:1] == b"{" else field
    return None


def _name(text: bytes) -> str:
    try:
        return str(orjson.loads(text))
    except orjson.JSONDecodeError:
        return ""


def _too_deep(field: str | None) -> InvalidRequest:
    return InvalidRequest.of_field(field or "body", f"must not be nested more than {MAX_DEPTH} deep")
