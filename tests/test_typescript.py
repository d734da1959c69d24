"""A TypeScript client made from the OpenAPI document compiles, and refuses what the broker would refuse."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from broker.resources.catalogue import build_registry
from broker.rest.openapi import openapi_document
from broker.settings import Settings

SOURCE = Path(__file__).with_name("typescript")
MODULES = Path(__file__).parents[1] / "js" / "client" / "node_modules"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The consumer with the packages of the JavaScript client, among which are those that it needs."""
    folder = tmp_path_factory.mktemp("typescript") / "client"
    shutil.copytree(SOURCE, folder)
    (folder / "node_modules").symlink_to(MODULES)
    (folder / "package.json").write_text(json.dumps({"type": "module"}))
    return folder


@pytest.fixture
def document() -> dict[str, Any]:
    return openapi_document(build_registry(), Settings())


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=100
    )


def compile_client(folder: Path, document: dict[str, Any]) -> str:
    """What the compiler says of the consumer with types of `document`; empty when nothing."""
    (folder / "openapi.json").write_text(json.dumps(document))
    made = run(folder, "node_modules/.bin/openapi-typescript", "openapi.json", "-o", "schema.ts")
    assert made.returncode == 0, made.stdout
    compiled = run(folder, "node_modules/.bin/tsc")
    return compiled.stdout if compiled.returncode else ""


def test_it_compiles(folder: Path, document: dict[str, Any]) -> None:
    assert compile_client(folder, document) == ""


def test_it_does_not_compile_with_a_document_that_is_wrong(folder: Path, document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    del schemas["ProgramResource"]["properties"]["live"]
    schemas["Event"]["properties"]["seq"]["type"] = "string"
    body = document["paths"]["/programs"]["post"]["requestBody"]["content"]["application/json"]
    body["schema"]["required"].remove("name")
    said = compile_client(folder, document)
    assert "Property 'live' does not exist" in said
    assert "'string[]' is not assignable to type 'number[]'" in said
    assert "Unused '@ts-expect-error' directive" in said
