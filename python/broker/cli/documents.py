"""`broker openapi` and `broker asyncapi`."""

from typing import Any

import orjson

from broker.cli.output import write_line
from broker.resources.catalogue import build_registry
from broker.rest.asyncapi import asyncapi_document
from broker.rest.openapi import openapi_document
from broker.settings import Settings


def openapi() -> None:
    """Print the OpenAPI document of the HTTP API, with the limits that the environment sets."""
    _print(openapi_document(build_registry(), Settings.load()))


def asyncapi() -> None:
    """Print the AsyncAPI document of the WebSocket interface, with the limits that the environment sets."""
    _print(asyncapi_document(build_registry(), Settings.load()))


def _print(document: dict[str, Any]) -> None:
    write_line(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
