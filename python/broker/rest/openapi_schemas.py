"""The JSON schemas of the OpenAPI document, generated from the models of params and results.

What a model cannot know is the value of a setting: where a field says `x-limited-by`, the setting's value
becomes the keyword that fits (`maxItems`, `enum`) or a sentence of the description.
"""

import re
from dataclasses import fields
from functools import cache
from typing import Any

import orjson
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode

from broker.rest.field_texts import describe_fields
from broker.settings import Settings, environment_name

Schema = dict[str, Any]

_REFERENCE = "#/components/schemas/{model}"
_SETTINGS = {entry.name for entry in fields(Settings)}
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


class _Untitled(GenerateJsonSchema):
    """Leaves out titles that only repeat the names of fields."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        return False


class Schemas:
    """Makes schemas, and gathers what has a name: schemas, and replies that tell errors."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.named: dict[str, Schema] = {}
        self.failures: dict[str, dict[str, Any]] = {}

    def of_params(self, model: type[BaseModel], *, keeps_absent: bool) -> Schema:
        """The schema of a params model.

        Args:
            keeps_absent: an absent field keeps its value, so it has no default. Null, where absent fields
                mean the same, is no default that a reader could learn from either.
        """
        schema: Schema = orjson.loads(_generate(model, "validation"))
        describe_fields(model.__name__, schema)
        self._finish(schema)
        for value in schema.get("properties", {}).values():
            if keeps_absent:
                value.pop("default", None)
        return schema

    def of_result(self, result: Any) -> Schema:
        """The schema of what an operation answers; a model is named, as it is inside a list."""
        items: Schema = self._finish(orjson.loads(_generate(list[result], "serialization")))["items"]
        return items

    def fill(self, text: str) -> str:
        """A description with the values of the settings that it names in braces."""

        def value(match: re.Match[str]) -> str:
            return format_value(getattr(self._settings, match[1])) if match[1] in _SETTINGS else match[0]

        return _PLACEHOLDER.sub(value, text)

    def _finish(self, schema: Schema) -> Schema:
        for name, named in schema.get("$defs", {}).items():
            describe_fields(name, named)
        self._resolve(schema)
        for name, named in schema.pop("$defs", {}).items():
            if self.named.setdefault(name, named) != named:
                raise ValueError(f"two schemas are named {name}")
        return schema

    def _resolve(self, value: Any) -> None:
        """Put settings in their place, and take out null as a default, throughout."""
        if isinstance(value, list):
            for inner in value:
                self._resolve(inner)
        if isinstance(value, dict):
            for inner in value.values():
                self._resolve(inner)
            if value.get("default", ...) is None:
                del value["default"]
            if value.pop("x-never-null", False):
                flat = without_null(value)
                value.clear()
                value.update(flat)
            if isinstance(value.get("x-limited-by"), str):
                self._limit(value, value["x-limited-by"])

    def _limit(self, schema: Schema, setting: str) -> None:
        limit = getattr(self._settings, setting)
        schema["x-limited-by"] = environment_name(setting)
        bounded = next((one for one in schema.get("anyOf", []) if one.get("type") != "null"), schema)
        if isinstance(limit, tuple):
            bounded["enum"] = list(limit)
        elif bounded.get("type") == "array":
            bounded["maxItems"] = limit
        else:
            text = f"At most {format_value(limit)} bytes as compact JSON."
            schema["description"] = f"{schema.get('description', '')} {text}".strip()


@cache
def _generate(kind: Any, mode: JsonSchemaMode) -> bytes:
    """The schema of a type as JSON, made once: a process makes more than one document only in tests."""
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    return orjson.dumps(
        adapter.json_schema(by_alias=True, ref_template=_REFERENCE, schema_generator=_Untitled, mode=mode)
    )


def format_value(value: object) -> str:
    """A setting's value for people."""
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def example_value(schema: Schema, value: Any) -> Any:
    """An example as its schema has it: a list that is written with commas is one."""
    is_list = schema.get("type") == "array"
    return value.split(",") if is_list and isinstance(value, str) else value


def without_null(schema: Schema) -> Schema:
    """A parameter's schema: it is absent or it is there, but it is never null."""
    options: list[Schema] = [option for option in schema.get("anyOf", []) if option.get("type") != "null"]
    if len(options) != 1:
        return schema
    shared = {key: value for key, value in schema.items() if key != "anyOf"}
    return shared | options[0]
