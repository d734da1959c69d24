"""JSON Patch (RFC 6902) and JSON Merge Patch (RFC 7396) on documents of which only some members may change.

What a patch costs is bounded before it is done: how many operations it has, how deep it reaches, and how much
it copies, for a patch that copies a member into itself again and again would double it each time.

Reading is free: `test`, and the source of `copy`, may name any member. What changes must be writable.
"""

from collections.abc import Collection
from typing import Any

import jsonpatch
import jsonpointer
import orjson

from broker.domain.strict_json import MAX_DEPTH, require_depth
from broker.errors import Conflict, InvalidRequest, PayloadTooLarge

MAX_OPERATIONS = 1_000
_ENVELOPE_DEPTH = 2  # a patch's own array and object around a value

_POINTER = "(/([^/~]|~[01])*)*"
_OPERATIONS = frozenset({"add", "remove", "replace", "move", "copy", "test"})


class _Written:
    """A value as JSON, from which the library's copy of it is made: ten times as fast as node by node."""

    def __init__(self, text: bytes) -> None:
        self._text = text

    def __deepcopy__(self, _memo: object) -> Any:
        return orjson.loads(self._text)


def apply_json_patch(
    document: dict[str, Any], patch: list[Any], writable: Collection[str], limit_bytes: int
) -> dict[str, Any]:
    """The document after the patch. `document` is used up: after an error it is half-done.

    Args:
        writable: the members of the document that may change.
        limit_bytes: the most that the `copy` operations may copy together, as compact JSON.

    Raises:
        InvalidRequest: it is no JSON Patch, is nested too deeply, or would change something else.
        PayloadTooLarge: it has too many operations, or copies too much.
        Conflict: a `test` fails, or an operation does not fit the document.
    """
    if len(patch) > MAX_OPERATIONS:
        raise PayloadTooLarge(f"a patch must not have more than {MAX_OPERATIONS} operations")
    require_depth(patch, "patch", MAX_DEPTH + _ENVELOPE_DEPTH)
    for index, operation in enumerate(patch):
        _check(operation, f"patch[{index}]", writable)
    room = limit_bytes
    for index, operation in enumerate(patch):
        field = f"patch[{index}]"
        if operation["op"] == "copy":
            copied = _written_source(document, operation, field)
            room -= len(copied)
            if room < 0:
                raise PayloadTooLarge(f"{field}: the patch copies more than {limit_bytes} bytes")
            # To copy is to add what is there (RFC 6902, section 4.5).
            operation = {"op": "add", "path": operation["path"], "value": _Written(copied)}
        elif operation["op"] in ("add", "replace"):
            operation = operation | {"value": _Written(orjson.dumps(operation["value"]))}
        document = _apply(document, operation, field)
    return document


def json_patch_schema(writable: Collection[str]) -> dict[str, Any]:
    """The JSON schema of one operation of a JSON Patch."""
    anywhere = {"type": "string", "pattern": f"^{_POINTER}$", "description": "A JSON Pointer, RFC 6901."}
    changed = anywhere | {"pattern": f"^/({'|'.join(sorted(writable))}){_POINTER}$"}

    def one(names: list[str], path: dict[str, Any], **others: Any) -> dict[str, Any]:
        members = {"op": {"type": "string", "enum": names}, "path": path} | others
        return {"type": "object", "required": list(members), "properties": members}

    return {
        "oneOf": [
            one(["add", "replace"], changed, value={}),
            one(["remove"], changed),
            one(["move"], changed, **{"from": changed}),
            one(["copy"], changed, **{"from": anywhere}),
            one(["test"], anywhere, value={}),
        ]
    }


def apply_merge_patch(
    document: dict[str, Any], patch: dict[str, Any], writable: Collection[str]
) -> dict[str, Any]:
    """The document after the merge patch; null removes a member.

    Raises:
        InvalidRequest: it is nested too deeply, or would change something that is not writable.
    """
    require_depth(patch, "patch", MAX_DEPTH + _ENVELOPE_DEPTH)
    for name in patch:
        if name not in writable:
            raise InvalidRequest.of_field(f"patch.{name}", f"only {_listed(writable)} can be patched")
    merged: dict[str, Any] = merge(document, patch)
    return merged


def merge(target: Any, patch: Any) -> Any:
    """`MergePatch` of RFC 7396, section 2. Objects of `target` are changed in place."""
    if not isinstance(patch, dict):
        return patch
    merged = target if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), value)
    return merged


def _check(operation: Any, field: str, writable: Collection[str]) -> None:
    """Raise InvalidRequest unless the operation is one of RFC 6902 and changes writable members only."""
    if not isinstance(operation, dict):
        raise InvalidRequest.of_field(field, "must be an object")
    name = operation.get("op")
    if not isinstance(name, str) or name not in _OPERATIONS:
        raise InvalidRequest.of_field(f"{field}.op", f"must be one of {_listed(_OPERATIONS)}")
    path = _pointer(operation, "path", field)
    if name != "test":
        _require_writable(path, f"{field}.path", writable)
    if name in ("move", "copy"):
        source = _pointer(operation, "from", field)
        if name == "move":
            _require_writable(source, f"{field}.from", writable)
    elif name != "remove" and "value" not in operation:
        raise InvalidRequest.of_field(f"{field}.value", "is required")


def _pointer(operation: dict[str, Any], member: str, field: str) -> list[str]:
    """The tokens of a JSON Pointer (RFC 6901)."""
    text = operation.get(member)
    if not isinstance(text, str):
        raise InvalidRequest.of_field(f"{field}.{member}", "must be a JSON Pointer")
    try:
        tokens = jsonpointer.JsonPointer(text).parts
    except jsonpointer.JsonPointerException:
        raise InvalidRequest.of_field(f"{field}.{member}", "must be a JSON Pointer") from None
    if len(tokens) > MAX_DEPTH + 1:
        raise InvalidRequest.of_field(f"{field}.{member}", f"must not be deeper than {MAX_DEPTH}")
    return [str(token) for token in tokens]


def _require_writable(tokens: list[str], field: str, writable: Collection[str]) -> None:
    if not tokens or tokens[0] not in writable:
        raise InvalidRequest.of_field(field, f"only {_listed(writable)} can be patched")


def _written_source(document: dict[str, Any], operation: dict[str, Any], field: str) -> bytes:
    """What the operation copies, as compact JSON."""
    try:
        return orjson.dumps(jsonpointer.JsonPointer(operation["from"]).resolve(document))
    except jsonpointer.JsonPointerException:
        raise _misfit(field) from None
    except TypeError:  # the encoder's own limit on depth, or a pointer to the end of an array
        raise InvalidRequest.of_field(field, "cannot be copied") from None


def _apply(document: dict[str, Any], operation: dict[str, Any], field: str) -> dict[str, Any]:
    try:
        patched: dict[str, Any] = jsonpatch.JsonPatch([operation]).apply(document, in_place=True)
    except jsonpatch.JsonPatchTestFailed:
        raise Conflict(f"{field}: the test failed") from None
    except jsonpatch.InvalidJsonPatch:
        raise InvalidRequest.of_field(field, "is not an operation of RFC 6902") from None
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException):
        raise _misfit(field) from None
    except RecursionError:
        raise InvalidRequest.of_field(field, "is nested too deeply") from None
    return patched


def _misfit(field: str) -> Conflict:
    """What the patch is for is not there: the document is in another state (RFC 5789, section 2.2)."""
    return Conflict(f"{field}: the path does not exist in the document")


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names))
