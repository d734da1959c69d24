"""JSON that nobody should send, made for every operation, through both doors: a clear refusal, nothing done.

Each operation is called with a request that is faultless but for one thing. The doors must agree on the
error, and the database must be as it was.
"""

import re
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from broker.domain.strict_json import MAX_DEPTH
from broker.operations.registry import Operation
from broker.rest.routing import build_endpoint
from tests.bad_input.stage import PARAMS, REGISTRY, Raw, Stage, each, repeated, written

pytestmark = [pytest.mark.anyio, pytest.mark.postgres, pytest.mark.usefixtures("leaves_no_errors")]

# Where free-form values stand; the path is that of the value.
FREE_FORM = {
    ("admin/createProgram", "metadata"),
    ("updateProgram", "metadata"),
    ("producer", "metadata"),
    ("producer", "events[1].metadata"),
    ("importProgramEvents", "events[1].metadata"),
    ("updateProgramEvent", "metadata"),
    ("createProject", "metadata"),
    ("updateProject", "metadata"),
    ("storeValue", "metadata"),
    ("createRevision", "content"),
    ("createProjectRevision", "content"),
    ("updateRevision", "content"),
    ("patchRevision", "content"),
    ("postApplicationRequest", "body"),
    ("putApplicationRequest", "body"),
}


def nested(depth: int) -> Any:
    """An object of this depth."""
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


def test_every_operation_has_a_faultless_request() -> None:
    assert PARAMS.keys() == {operation.name for operation in REGISTRY.routed}


BROKEN: dict[str, Callable[[Any], Any]] = {
    "repeated name": lambda value: None,
    "NaN": lambda value: Raw("NaN"),
    "infinity": lambda value: Raw("-Infinity"),
    "number too large": lambda value: Raw("1e999"),
    "lone surrogate": lambda value: Raw(r'"\ud800"'),
    "raw surrogate": lambda value: Raw(b'"\xed\xa0\x80"'.decode("utf-8", "surrogateescape")),
    "invalid UTF-8": lambda value: Raw(b'"\xc0\xaf\xff"'.decode("utf-8", "surrogateescape")),
    "raw control character": lambda value: Raw('"\x01"'),
    "large integer": lambda value: 2**53 + 1,
    "larger integer": lambda value: Raw(str(-(2**64))),
    "deep object": lambda value: nested(100),
    "deep list": lambda value: Raw("[" * 110 + "]" * 110),
    "very deep": lambda value: Raw('{"a":' * 100_000),
}
# Over the socket these break the message or its frame, not the params: the tests of the protocol have them.
BREAKS_MESSAGE = {
    "NaN", "infinity", "raw control character", "very deep", "raw surrogate", "invalid UTF-8",
}  # fmt: skip


@pytest.mark.parametrize("operation", each())
async def test_broken_json_is_refused_by_both_doors(stage: Stage, operation: Operation) -> None:
    base, before = stage.params(operation), await stage.state()
    path = set(build_endpoint(operation).names)
    whole = operation.route.whole_body
    targets = [whole] if whole else [name for name in base if name not in path] or ["bogus"]
    for fault, break_it in BROKEN.items():
        for field in targets:
            params = base | {field: break_it(base.get(field))}
            is_repeated = fault == "repeated name"
            if is_repeated and whole:
                continue
            told = None
            if build_endpoint(operation).has_body:
                body = {name: value for name, value in base.items() if name not in path}
                raw = repeated(body, field) if is_repeated else None
                told = await stage.over_http(operation, params, raw)
                assert (told.status, told.error["error"]) == (400, "invalid_request"), (fault, told.body)
                assert told.fields, (fault, field)
            if fault in BREAKS_MESSAGE:
                continue
            raw = repeated(base, field) if is_repeated else written(params)
            error = await stage.over_socket(operation, raw)
            assert (error["code"], error["status"]) == (-32602, 400), (fault, error)
            if told is not None and fault != "lone surrogate" and fault != "number too large":
                assert [f["field"] for f in error["errors"]] == told.fields, fault
                assert re.split(r"[.\[]", told.fields[0])[0] == field
    assert await stage.state() == before


@pytest.mark.parametrize("operation", each())
async def test_wrong_types_are_refused_alike(stage: Stage, operation: Operation) -> None:
    base, before = stage.params(operation), await stage.state()
    path = set(build_endpoint(operation).names)
    has_body = build_endpoint(operation).has_body and not operation.route.whole_body
    wrong: tuple[Any, ...] = (5.5, True, "", "\x00", "x" * 20_000, [], [[]], [None, {}])
    for field in (name for name in base if name not in path):
        for value in wrong:
            if operation.name in ("deleteProject", "admin/deleteProgram") and value is True:
                continue
            params = base | {field: value}
            error = await stage.over_socket(operation, orjson.dumps(params))
            assert error.get("status", 400) < 500, (field, value, error)
            if has_body and error:
                told = await stage.over_http(operation, params)
                assert told.error == {k: v for k, v in error.items() if k not in ("code", "retryAfter")}, (
                    value
                )
            if not error:
                before = await stage.state()  # it was not wrong after all
    assert await stage.state() == before


@pytest.mark.parametrize("operation", each())
async def test_unknown_fields_are_named(stage: Stage, operation: Operation) -> None:
    base, before = stage.params(operation), await stage.state()
    for name in ("bogus", "__proto__", "account", "Id"):
        error = await stage.over_socket(operation, orjson.dumps(base | {name: "x"}))
        assert (error["status"], [fault["field"] for fault in error["errors"]]) == (400, [name])
        if operation.route.is_proxy or operation.route.whole_body:
            continue
        told = await stage.over_http(operation, base | {name: "x"})
        assert (told.status, told.fields) == (400, [name]), told.body
    assert await stage.state() == before


def test_every_free_form_value_is_known() -> None:
    """What takes any object is in the list."""
    free: dict[str, object] = {"additionalProperties": True, "type": "object"}
    found = set()
    for operation in REGISTRY.operations:
        schema = operation.params.model_json_schema(by_alias=True)
        for properties in (schema, *schema.get("$defs", {}).values()):
            for name, place in properties.get("properties", {}).items():
                if any(free.items() <= option.items() for option in (place, *place.get("anyOf", ()))):
                    found.add((operation.name, name))
    assert found <= {(name, field.rpartition(".")[2]) for name, field in FREE_FORM} | {
        ("patchRevision", "patch")
    }
    assert len(found) > 8


def placed(operation: Operation, field: str, base: dict[str, Any], value: Any) -> dict[str, Any]:
    """The faultless request with `value` as the free-form value at `field`."""
    if operation.name == "patchRevision":
        return base | {"patch": {"content": value}}
    if field.startswith("events"):
        return {"programId": "imports", "events": [{"event": "A#b"}, {"event": "A#b", "metadata": value}]}
    return base | {field: value}


@pytest.mark.parametrize(("name", "field"), sorted(FREE_FORM))
async def test_depth_of_free_form_values_at_its_edge(stage: Stage, name: str, field: str) -> None:
    operation = REGISTRY.find(name)
    assert operation is not None
    before = await stage.state()
    for depth in (MAX_DEPTH + 1, 100):
        params = placed(operation, field, stage.params(operation), nested(depth))
        error = await stage.over_socket(operation, orjson.dumps(params))
        told = await stage.over_http(operation, params)
        for status, fields in (
            (error["status"], [fault["field"] for fault in error["errors"]]),
            (told.status, told.fields),
        ):
            # Far too deep values are found before anybody knows what the request is.
            assert status == 400
            assert fields == [field] or (depth == 100 and fields == ["patch"])
    assert await stage.state() == before
    params = placed(operation, field, stage.params(operation), nested(MAX_DEPTH))
    error = await stage.over_socket(operation, orjson.dumps(params))
    assert error.get("status") in (None, 403), error  # the data source leads to a forbidden address
    told = await stage.over_http(operation, {**params, **_another_id(params)})
    assert told.status < 300 or told.status == 403, told.body


def _another_id(params: dict[str, Any]) -> dict[str, Any]:
    """What was made by the other door cannot be made again."""
    return {"id": "another"} if params.get("id") == "new" else {}


_DOUBLE = [{"op": "copy", "from": "/content", "path": f"/content/c{n}"} for n in range(40)]
PATCHES = [
    ([{"op": "replace", "path": "/id", "value": "x"}], 400),
    ([{"op": "add", "path": "/createdBy", "value": "x"}], 400),
    ([{"op": "remove", "path": ""}], 400),
    ([{"op": "move", "from": "/projectId", "path": "/title"}], 400),
    ([{"op": "add", "path": "/content/x", "value": 1}, {"op": "test", "path": "/title", "value": "no"}], 409),
    ([{"op": "add", "path": "/content/x", "value": 1}, {"op": "remove", "path": "/content/none"}], 409),
    ([{"op": "move", "from": "/content", "path": "/content/inside"}], 409),
    ([{"op": "add", "path": "/content/x", "value": 1}] * 1_001, 413),
    ([{"op": "add", "path": "/content/x", "value": "y" * 50_000}, *_DOUBLE], 413),
    ([{"op": "add", "path": "/content" + "/a" * 70, "value": 1}], 400),
    (_DOUBLE[:1] * 80, None),
    ([{"op": "explode", "path": "/title"}], 400),
    ([5], 400),
    ({"id": "x"}, 400),
    ({"status": "gone"}, 400),
    ({"version": None}, 400),
]


@pytest.mark.parametrize(("patch", "status"), PATCHES)
async def test_hostile_patches_change_nothing(stage: Stage, patch: Any, status: int | None) -> None:
    operation = REGISTRY.find("patchRevision")
    assert operation is not None
    params, before = stage.params(operation) | {"patch": patch}, await stage.state()
    error = await stage.over_socket(operation, orjson.dumps(params))
    told = await stage.over_http(operation, params)
    assert told.status == error["status"]
    assert told.error == {name: value for name, value in error.items() if name != "code"}
    assert told.status == status or (status is None and 400 <= told.status < 500)
    assert await stage.state() == before
