"""Strict JSON from outside: the same reading at every door, one meaning or a refusal.

RFC 8259 leaves open what a repeated name means, how deep a text may be nested and which numbers a reader
keeps. Two readers that decide it differently see two requests in one text, so all three are refused here:

* a name that is repeated within its object;
* an integer beyond ±2^53, which many readers round;
* more than `MAX_DEPTH` objects and arrays inside each other in one value of the caller's own, and
  `ENVELOPE_DEPTH` around it that the request is made of, such as `{"events": [{"metadata": …}]}`.

Native code looks for them before anything is built, in one pass that takes a fraction of the time of reading;
so a text that is refused costs less than one that is not, whatever is in it. `orjson`, which keeps the last
of repeated names and makes floats of integers over 64 bits, then reads what has none of these, and refuses
what is no JSON at all: NaN, lone surrogates, byte order marks.

A body that is read as it arrives is read by the same rules, value by value (`value_end`).
"""

from collections.abc import Sequence
from typing import Any

import orjson

from broker._native import check_json, pass_json
from broker.domain.values import MAX_INTEGER
from broker.errors import InvalidRequest, field_path

MAX_DEPTH = 64
ENVELOPE_DEPTH = 3
_MESSAGES = {
    "repeated": "must not be repeated",
    "large integer": f"must be from {-MAX_INTEGER} to {MAX_INTEGER}",
    "too deep": f"must not be nested more than {MAX_DEPTH} deep",
}


def parse_json(text: bytes, field: str = "") -> Any:
    """The value of a JSON text from outside.

    Args:
        field: path of the text in the request, for the error; empty for a body or params, whose members are
            the request's own.

    Raises:
        InvalidRequest: it is none, or is refused by a rule of this module.
    """
    # What `field` names is in the envelope.
    found = check_json(text, MAX_DEPTH + ENVELOPE_DEPTH - bool(field))
    if found is not None and found[0] in _MESSAGES:
        raise _refusal(found, field)
    value = load_json(text, field)
    if found is not None:  # nobody but `orjson` could read it
        raise _malformed(field)
    return value


def value_end(text: bytes, at: int, field: str) -> int | None:
    """Where the value ends that begins at `at`, for `load_json`; None when more of the text is to come first.

    Args:
        field: path of the value in the request.

    Raises:
        InvalidRequest: as `parse_json`, as soon as nothing that follows can change it.
    """
    found = pass_json(text, at, MAX_DEPTH + ENVELOPE_DEPTH - 1)
    if isinstance(found, tuple):
        raise _refusal(found, field) if found[0] in _MESSAGES else _malformed(field)
    return found


def load_json(text: bytes, field: str) -> Any:
    """The value of a text that has been looked through. Raises InvalidRequest: it is no JSON."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise _malformed(field, f": {error}") from None


def may_have(text: bytes, name: str) -> bool:
    """Whether a JSON or form text can have a member of this name, which must be of plain letters.

    Quick: looks for the letters, and for what other spellings of them must have.
    """
    return name.encode() in text or b"\\u" in text or b"%" in text


def require_depth(value: Any, field: str, limit: int = MAX_DEPTH) -> None:
    """Raise InvalidRequest when more than `limit` objects and arrays are inside each other."""
    level, depth = [value], 0
    while level := [one for one in level if isinstance(one, dict | list)]:
        depth += 1
        if depth > limit:
            raise _too_deep(field)
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]


def compact_json(value: Any, field: str) -> bytes:
    """The compact UTF-8 of a value that `parse_json` made, or that was made of such ones.

    Raises:
        InvalidRequest: it is nested too deeply, as it may be when it was put together.
    """
    try:
        text = orjson.dumps(value)
    except orjson.JSONEncodeError:  # the encoder's own limit on depth
        raise _too_deep(field) from None
    if text.count(b"[") + text.count(b"{") > MAX_DEPTH:
        found = check_json(text, MAX_DEPTH)
        if found is not None and found[0] == "too deep":
            raise _too_deep(field)
    return text


def _refusal(found: tuple[str, Sequence[int | str]], field: str) -> InvalidRequest:
    kind, place = found
    if kind == "too deep":
        place = _deep_place(place, field)
    return InvalidRequest.of_field(field_path(place, field) or "body", _MESSAGES[kind])


def _malformed(field: str, why: str = "") -> InvalidRequest:
    return InvalidRequest.of_field(field or "body", f"is not JSON{why}")


def _deep_place(place: Sequence[int | str], field: str) -> list[int | str]:
    """The param in which a value is nested too deeply; in a list of objects, the member of which one."""
    found: list[int | str] = []
    rest = list(place)
    if not field and rest and isinstance(rest[0], str):
        found.append(rest.pop(0))
    elif not field:
        return found
    if not field.endswith("]") and rest and isinstance(rest[0], int):
        found.append(rest.pop(0))
    is_element = field.endswith("]") or bool(found and isinstance(found[-1], int))
    if is_element and rest and isinstance(rest[0], str):
        found.append(rest.pop(0))
    return found


def _too_deep(field: str) -> InvalidRequest:
    return InvalidRequest.of_field(field, _MESSAGES["too deep"])
