"""`broker openapi`."""

import orjson

from broker.cli.output import write_line
from broker.operations.catalogue import build_registry
from broker.rest.openapi import openapi_document
from broker.settings import Settings


def openapi() -> None:
    """Print the OpenAPI document of the HTTP API, with the limits that the environment sets."""
    document = openapi_document(build_registry(), Settings.load())
    write_line(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
