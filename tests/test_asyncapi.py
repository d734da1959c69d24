"""AsyncAPI's own parser takes the document, and knows every operation in it."""

import json
import subprocess
from pathlib import Path
from typing import Any

from broker.resources.catalogue import build_registry
from broker.resources.notifications import NOTIFICATIONS
from broker.rest.asyncapi import asyncapi_document
from broker.settings import Settings

FOLDER = Path(__file__).with_name("asyncapi")
ERROR = 0  # the severity of what makes a document invalid; 1 warns, 2 informs


def parse(document: dict[str, Any]) -> dict[str, Any]:
    """What the parser says; `make build` has installed it."""
    assert (FOLDER / "node_modules").is_dir(), "make build installs the parser"
    command = ["node", "check.mjs"]
    run = subprocess.run(command, cwd=FOLDER, input=json.dumps(document), text=True, capture_output=True)
    assert run.returncode == 0, run.stderr
    told: dict[str, Any] = json.loads(run.stdout)
    return told


def test_the_parser_takes_it() -> None:
    registry = build_registry()
    told = parse(asyncapi_document(registry, Settings()))
    assert [fault for fault in told["diagnostics"] if fault["severity"] <= ERROR + 1] == []
    calls = [operation for operation in told["operations"] if operation["action"] == "receive"]
    assert len(calls) == len(registry.operations) + 3  # subscribe, unsubscribe, and the event stream
    assert [call for call in calls if not (call["messages"] == 1 and call["replies"] > 5)] == []
    sent = {operation["id"] for operation in told["operations"] if operation["action"] == "send"}
    assert sent == {*(f"notify.{each.method}" for each in NOTIFICATIONS), "refuse"}


def test_the_parser_refuses_what_is_wrong() -> None:
    document = asyncapi_document(build_registry(), Settings())
    document["channels"]["socket"]["messages"] = {}
    document["operations"] = {"getVersion": document["operations"]["getVersion"]}
    del document["info"]["version"]
    told = parse(document)
    faults = [fault["message"] for fault in told["diagnostics"] if fault["severity"] == ERROR]
    assert "version" in "\n".join(faults)
    assert "getVersion" in "\n".join(faults)


def test_every_field_is_described() -> None:
    """Those of errors have one value each, and say it."""
    document = asyncapi_document(build_registry(), Settings())
    schemas = dict(document["components"]["schemas"])
    for name, message in document["channels"]["socket"]["messages"].items():
        schemas[name] = message["payload"].get("properties", {}).get("params", {})
    fields = [
        (f"{name}.{key}", field)
        for name, schema in schemas.items()
        if not name.endswith("Error")
        for key, field in schema.get("properties", {}).items()
    ]
    assert len(fields) > 500
    assert [name for name, field in fields if not field.get("description")] == []
