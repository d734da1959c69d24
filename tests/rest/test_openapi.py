"""The OpenAPI document says what the door does."""

import re
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
from jsonschema import Draft202012Validator, FormatChecker

from broker.domain.values import parse_time
from broker.errors import BrokerError
from broker.operations.registry import Operation
from broker.resources.catalogue import build_registry
from broker.rest import streams
from broker.rest.openapi import openapi_document
from broker.rest.openapi_replies import errors_of
from broker.rest.openapi_schemas import format_value
from broker.settings import Settings
from tests.product import Product

REGISTRY = build_registry()
DOCUMENT = openapi_document(REGISTRY, Settings())
# Served by gateways, and no operation: the HTTP port redirects there.
STREAM = DOCUMENT["paths"][streams.PATH]["get"]
OPERATIONS = [
    pytest.param(path, method, described, id=described["operationId"])
    for path, methods in DOCUMENT["paths"].items()
    for method, described in methods.items()
    if described is not STREAM
]
# What bounds a request or what is kept of it; limits of connections, sockets, logs and images are another
# document's.
LIMITS = re.compile(
    r"(?!ws_|log_|images_)\w*(limit_|_rate_|_burst_|login_tries|storage_project|fetch_project|token_lifetime"
    r"|client_ids|_days$|http_timeout|fetch_timeout)\w*"
)


FORMATS = FormatChecker(["uuid"])


@FORMATS.checks("date-time", ValueError)
def is_time(value: object) -> bool:
    return not isinstance(value, str) or (len(value) > 10 and parse_time(value) is not None)


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(references, value.values()))
    return set().union(*map(references, value)) if isinstance(value, list) else set()


def resolved(value: dict[str, Any]) -> dict[str, Any]:
    """What a reference leads to; anything else as it is."""
    if "$ref" not in value:
        return value
    found: Any = DOCUMENT
    for part in value["$ref"].removeprefix("#/").split("/"):
        found = found[part]
    return dict(found)


def operation_of(described: dict[str, Any]) -> Operation:
    operation = REGISTRY.find(described["operationId"])
    assert operation is not None
    return operation


def described_places(described: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Everything of an operation that has a schema and examples, with a name for it."""
    for parameter in described["parameters"]:
        yield parameter["name"], parameter
    for kind, content in described.get("requestBody", {}).get("content", {}).items():
        yield f"body {kind}", content
    for status, reply in described["responses"].items():
        for kind, content in resolved(reply).get("content", {}).items():
            yield f"{status} {kind}", content
        for name, header in resolved(reply).get("headers", {}).items():
            yield f"{status} {name}", resolved(header)


def examples(place: dict[str, Any]) -> list[Any]:
    named = [example["value"] for example in place.get("examples", {}).values()]
    return named + ([place["example"]] if "example" in place else [])


def faults(schema: dict[str, Any], example: Any) -> list[str]:
    whole = {**schema, "components": DOCUMENT["components"]}
    validator = Draft202012Validator(whole, format_checker=FORMATS)
    return [error.message for error in validator.iter_errors(example)]


def test_every_operation_is_in_it() -> None:
    assert {param.id for param in OPERATIONS} == {operation.name for operation in REGISTRY.routed}


def test_the_stream_is_in_it() -> None:
    for name, place in described_places(STREAM):
        for example in examples(place):
            assert not faults(place["schema"], example), name
    assert {"200", "307", "400", "401", "403", "404", "405", "429", "503"} <= set(STREAM["responses"])
    assert STREAM["operationId"] not in {operation.name for operation in REGISTRY.operations}


def test_every_reference_leads_somewhere() -> None:
    for reference in references(DOCUMENT):
        assert resolved({"$ref": reference})


def test_every_field_is_described() -> None:
    """Those of errors have one value each, and say it."""
    named = DOCUMENT["components"]["schemas"].items()
    fields = [
        (f"{name}.{key}", field)
        for name, schema in named
        if not name.endswith("Error")
        for key, field in schema.get("properties", {}).items()
    ]
    for described in (param.values[2] for param in OPERATIONS):
        fields += [
            (f"{described['operationId']}.{each['name']}", each["schema"] | each)
            for each in map(resolved, described["parameters"])
        ]
    assert len(fields) > 300
    assert [name for name, field in fields if not field.get("description")] == []


@pytest.mark.parametrize(("path", "method", "described"), OPERATIONS)
def test_each_operation_is_described(path: str, method: str, described: dict[str, Any]) -> None:
    assert described["summary"]
    assert described["description"]
    assert described["tags"] != [""]
    in_path = {p["name"] for p in described["parameters"] if p["in"] == "path"}
    assert [name for name in in_path if f"{{{name}}}" not in path] == []
    assert path.count("{") == len(in_path)
    assert "2" in {status[0] for status in described["responses"]}, "it says how the operation succeeds"


@pytest.mark.parametrize(("path", "method", "described"), OPERATIONS)
def test_each_operation_says_who_may_call_it(path: str, method: str, described: dict[str, Any]) -> None:
    is_open = operation_of(described).audience is None
    assert described["security"] == ([{}, {"bearer": []}] if is_open else [{"bearer": []}])


def test_who_may_be_refused_is_told_so() -> None:
    """Also where callers without a token are let in, but not to everything."""
    refusing = {param.id for param in OPERATIONS if "403" in param.values[2]["responses"]}
    assert {"getProgramEvents", "getProgram", "listUsers"} <= refusing
    assert not {"getVersion", "servertime", "getStoredValue", "getCurrentUser"} & refusing


@pytest.mark.parametrize(("path", "method", "described"), OPERATIONS)
def test_each_error_is_described(path: str, method: str, described: dict[str, Any]) -> None:
    def told(kind: type[BrokerError]) -> bool:
        reply = resolved(described["responses"][str(kind.status)])
        return kind.name in reply["content"]["application/json"]["examples"]

    operation = operation_of(described)
    assert [kind for kind in {*errors_of(operation), *operation.errors} if not told(kind)] == []
    assert {"400", "401", "404", "413", "415", "500", "503"} <= described["responses"].keys()


@pytest.mark.parametrize(("path", "method", "described"), OPERATIONS)
def test_each_place_has_an_example_that_its_schema_takes(
    path: str, method: str, described: dict[str, Any]
) -> None:
    optional = {"query", "header"}
    for name, place in described_places(described):
        found = examples(place)
        assert found or place.get("in") in optional, name
        for example in found:
            assert faults(place.get("schema", {}), example) == [], name


@pytest.mark.parametrize(("path", "method", "described"), OPERATIONS)
def test_each_operation_with_parameters_has_an_example(
    path: str, method: str, described: dict[str, Any]
) -> None:
    own = [place for place in described["parameters"] if place["in"] != "header"]
    assert not own or any(examples(place) for place in own)


@pytest.mark.parametrize(("path", "method", "described"), OPERATIONS)
def test_headers_are_told(path: str, method: str, described: dict[str, Any]) -> None:
    wanted = {"401": "WWW-Authenticate", "429": "Retry-After", "503": "Retry-After", "405": "Allow"}
    for status, reply in described["responses"].items():
        headers = resolved(reply).get("headers", {}).keys()
        assert {"Cache-Control", "X-Request-Id"} <= headers
        assert wanted.get(status, "X-Request-Id") in headers
    success = described["responses"][str(operation_of(described).route.status)]
    route = operation_of(described).route
    assert route.location is None or success["headers"]["Location"]["required"] is not route.locates_itself


def test_a_method_that_a_reserved_word_lacks_is_described() -> None:
    """`PUT /programs/filter` is 405, although `filter` stands where an id does."""
    for path, method in (("/programs/{programId}", "put"), ("/programs/{programId}", "delete")):
        assert "405" in DOCUMENT["paths"][path][method]["responses"]
    assert "405" not in DOCUMENT["paths"]["/programs/{programId}"]["get"]["responses"]
    assert "405" not in DOCUMENT["paths"]["/programs/filter"]["get"]["responses"]


def test_answers_of_upstreams_are_told_from_ours() -> None:
    path = DOCUMENT["paths"]["/projects/{projectId}/application/requests/{version}/{dataSourceId}"]
    for described in path.values():
        replies = described["responses"]
        assert "X-Upstream-Status" in replies["200"]["headers"]
        assert "X-Upstream-Status" in replies["default"]["headers"]
        assert "X-Upstream-Status" not in resolved(replies["404"])["headers"]


def test_a_resource_that_is_created_leads_to_what_can_be_done_with_it() -> None:
    links = DOCUMENT["paths"]["/projects"]["post"]["responses"]["201"]["links"]
    assert links["getProject"] == {
        "operationId": "getProject",
        "parameters": {"projectId": "$response.body#/id"},
    }


def test_an_example_that_its_schema_refuses_is_noticed() -> None:
    schema = {"$ref": "#/components/schemas/ProgramResource"}
    example = DOCUMENT["paths"]["/programs/{programId}"]["get"]["responses"]["200"]["content"]
    good = example["application/json"]["example"]
    assert faults(schema, good) == []
    for change in ({"live": "yes"}, {"createdTime": "today"}, {"more": 1}, {"access": "secret"}):
        assert faults(schema, good | change)


@pytest.mark.parametrize("name", [entry.name for entry in fields(Settings) if LIMITS.fullmatch(entry.name)])
def test_each_limit_is_told_as_it_is_set(name: str) -> None:
    value = getattr(Settings(), name)
    other = (*value, "Another") if isinstance(value, tuple) else value + 7
    changed = openapi_document(REGISTRY, replace(Settings(), **{name: other}))
    assert changed != DOCUMENT
    assert not isinstance(value, int) or format_value(other) in str(changed) or f"{other}" in str(changed)


def test_the_limits_are_those_of_requests() -> None:
    names = {entry.name for entry in fields(Settings) if LIMITS.fullmatch(entry.name)}
    assert {"body_limit_bytes", "batch_limit_events", "import_limit_events", "metadata_limit_bytes"} <= names
    assert {"storage_value_limit_bytes", "import_limit_bytes"} <= names


def test_the_publish_operation_in_full() -> None:
    described = DOCUMENT["paths"]["/programs/{programId}/events"]["post"]
    body = described["requestBody"]["content"]["application/json"]
    assert body["schema"]["properties"].keys() == {"event", "timestamp", "timecode", "metadata", "events"}
    assert body["schema"]["additionalProperties"] is False
    assert body["example"] == {"event": "Score#update", "metadata": {"home": 2, "away": 1}}
    assert faults(body["schema"], {"events": [{"event": "Score#update"}]}) == []
    for wrong in ({}, {"event": "Score#update", "events": []}, {"event": "Score"}, {"events": []}):
        assert faults(body["schema"], wrong)
    assert "Idempotency-Key" in [parameter["name"] for parameter in described["parameters"]]
    assert {"201", "400", "401", "403", "404", "409", "413", "415", "503"} <= described["responses"].keys()


def test_what_the_models_cannot_say_is_said() -> None:
    paths = DOCUMENT["paths"]
    imported = paths["/programs/{programId}/events/import"]["post"]["requestBody"]
    updated = paths["/programs/{programId}"]["put"]["requestBody"]
    schemas = [body["content"]["application/json"]["schema"] for body in (imported, updated)]
    assert schemas[0]["required"] == ["events"]
    assert schemas[1]["required"] == ["id", "name", "scheduledStartTime", "scheduledEndTime"]


def test_a_patch_has_the_schema_of_its_media_type() -> None:
    path = DOCUMENT["paths"]["/projects/{projectId}/application/revisions/{revisionId}"]
    content = path["patch"]["requestBody"]["content"]
    listed, merged = (content[kind]["schema"] for kind in content)
    assert (
        faults(listed, [{"op": "test", "path": "/id", "value": 1}, {"op": "remove", "path": "/title"}]) == []
    )
    assert faults(listed, {"title": "T"})
    assert faults(listed, [{"op": "remove", "path": "/id"}])
    assert faults(merged, {"title": None}) == []
    assert faults(merged, {"id": "x"})


def test_path_parameters_are_not_fields_of_bodies() -> None:
    for _, _, described in (param.values for param in OPERATIONS):
        body = described.get("requestBody", {}).get("content", {}).get("application/json")
        if body is not None:
            in_path = {p["name"] for p in described["parameters"] if p["in"] == "path"}
            echoed = in_path & body["schema"].get("properties", {}).keys()
            assert set(operation_of(described).route.echoed) == echoed


@pytest.mark.anyio
@pytest.mark.postgres
@pytest.mark.parametrize("page", re.findall(r"`(/[^ `]+)`", DOCUMENT["info"]["description"]))
async def test_the_pages_at_the_root_are_where_it_says(product: Product, page: str) -> None:
    async with product.door(None) as door:
        root = door.base_url.copy_with(path=page)
        assert (await door.get(root)).status_code == 200
        refused = await door.post(root)
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.anyio
@pytest.mark.postgres
async def test_it_is_served(product: Product) -> None:
    async with product.door(None) as door:
        answer = await door.get("/openapi.json")
        assert (await door.options("/openapi.json")).status_code == 204
    assert answer.json() == openapi_document(REGISTRY, product.services.settings)
    assert answer.headers["access-control-allow-origin"] == "*"


@pytest.mark.anyio
@pytest.mark.postgres
async def test_the_examples_work(product: Product) -> None:
    """Those of the operations on programs and events, in the order of a program's life."""
    names = [
        "admin/createProgram",
        "getProgram",
        "updateProgram",
        "producer",
        "getProgramEvents",
        "filterProgramEvents",
        "exportProgramEvents",
        "importProgramEvents",
        "getLastUpdate",
        "filterPrograms",
        "getProducerPrograms",
        "deleteAllProgramEvents",
        "admin/deleteProgram",
        "servertime",
        "getVersion",
    ]
    await product.make_program("rehearsal")
    async with product.door() as door:
        for name in names:
            operation = REGISTRY.find(name)
            assert operation is not None
            example = dict(operation.example or {})
            path = operation.route.path
            if "{programId}" in path:
                path = path.replace("{programId}", example.pop("programId"))
            has_body = operation.route.method in ("POST", "PUT")
            sent: dict[str, Any] = {"json": example} if has_body else {"params": example}
            answer = await door.request(operation.route.method, path, **sent)
            assert answer.status_code == operation.route.status, (name, answer.text)
