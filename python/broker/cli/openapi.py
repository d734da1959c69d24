"""`broker openapi`."""

import orjson

from broker.cli.output import write_line
from broker.operations.catalogue import build_registry
from broker.rest.openapi import openapi_document


def openapi() -> None:
    """Print the OpenAPI document of the HTTP API."""
    document = openapi_document(build_registry())
    write_line(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
