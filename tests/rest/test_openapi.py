"""The OpenAPI document says what the door does."""

from typing import Any

import pytest

from broker.operations.catalogue import build_registry
from broker.rest.openapi import openapi_document
from broker.settings import Settings
from tests.product import Product

REGISTRY = build_registry()
DOCUMENT = openapi_document(REGISTRY, Settings())
OPERATIONS = [
    pytest.param(path, method, described, id=described["operationId"])
    for path, methods in DOCUMENT["paths"].items()
    for method, described in methods.items()
]


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(references, value.values()))
    return set().union(*map(references, value)) if isinstance(value, list) else set()


def test_every_operation_is_in_it() -> None:
    assert {param.id for param in OPERATIONS} == {operation.name for operation in REGISTRY.operations}


def test_every_reference_leads_somewhere() -> None:
    known = {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}
    assert references(DOCUMENT) <= known


@pytest.mark.parametrize(("path", "method", "described"), OPERATIONS)
def test_each_operation_is_described(path: str, method: str, described: dict[str, Any]) -> None:
    assert described["summary"]
    assert described["tags"]
    in_path = {p["name"] for p in described["parameters"] if p["in"] == "path"}
    assert all(f"{{{name}}}" in path for name in in_path)
    assert path.count("{") == len(in_path)
    assert {"400", "401"} <= described["responses"].keys()
    assert any(status.startswith("2") for status in described["responses"])
    assert ("403" in described["responses"]) >= (described["security"] == [{"bearer": []}])


def test_the_publish_operation_in_full() -> None:
    described = DOCUMENT["paths"]["/programs/{programId}/events"]["post"]
    body = described["requestBody"]["content"]["application/json"]
    assert body["schema"]["properties"].keys() == {"event", "timestamp", "timecode", "metadata", "events"}
    assert body["schema"]["additionalProperties"] is False
    assert body["example"] == {"event": "Score#update", "metadata": {"home": 2, "away": 1}}
    assert "Idempotency-Key" in [parameter["name"] for parameter in described["parameters"]]
    assert {"201", "400", "401", "403", "404", "409", "413", "415", "503"} <= described["responses"].keys()


def test_what_the_models_cannot_say_is_said() -> None:
    paths = DOCUMENT["paths"]
    imported = paths["/programs/{programId}/events/import"]["post"]["requestBody"]
    updated = paths["/programs/{programId}"]["put"]["requestBody"]
    schemas = [body["content"]["application/json"]["schema"] for body in (imported, updated)]
    assert schemas[0]["required"] == ["events"]
    assert schemas[1]["required"] == ["id", "name", "scheduledStartTime", "scheduledEndTime"]


def test_path_parameters_are_not_fields_of_bodies() -> None:
    for _, _, described in (param.values for param in OPERATIONS):
        body = described.get("requestBody", {}).get("content", {}).get("application/json")
        if body is not None:
            in_path = {p["name"] for p in described["parameters"] if p["in"] == "path"}
            assert not in_path & body["schema"].get("properties", {}).keys()


@pytest.mark.anyio
@pytest.mark.postgres
async def test_it_is_served(product: Product) -> None:
    async with product.door(None) as door:
        answer = await door.get("/openapi.json")
        assert (await door.options("/openapi.json")).status_code == 204
    assert answer.json() == DOCUMENT
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
