"""Maps method and path to an operation: a tree of path segments, built once from the registry."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache, lru_cache
from urllib.parse import unquote_to_bytes

from pydantic import BaseModel

from broker.errors import InvalidRequest
from broker.operations.registry import Operation, Route

PREFIX = ["api", "v1"]

# Paths that are remembered: the most of them, and the longest.
_PATHS = 1_000
_PATH_BYTES = 500
_BODY_METHODS = frozenset({"POST", "PUT", "PATCH"})


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One operation as HTTP serves it.

    Attributes:
        route: of the operation.
        names: of the path's placeholders, in order.
        query: the query parameters and their JSON types (`integer`, `boolean`, `string`).
        has_body: whether params come from the body; otherwise, or where it `takes_query`, from the query.
    """

    operation: Operation
    route: Route
    names: tuple[str, ...]
    query: dict[str, str]
    has_body: bool


@dataclass(slots=True)
class _Node:
    children: dict[str, "_Node"] = field(default_factory=dict)
    placeholder: "_Node | None" = None
    endpoints: dict[str, Endpoint] = field(default_factory=dict)


class RouteTable:
    """All endpoints below `/api/v1`. A literal segment wins over a placeholder."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self._root = _Node()
        self._recall = lru_cache(_PATHS)(self._find)
        for operation in operations:
            self._add(operation)

    def find(self, path: bytes) -> tuple[dict[str, Endpoint], list[str]]:
        """The endpoints of a raw path, by method, and the values of its placeholders; change neither.

        Returns:
            An empty mapping when the path is nobody's.

        Raises:
            InvalidRequest: it is not percent-encoded UTF-8.
        """
        return self._recall(path) if len(path) <= _PATH_BYTES else self._find(path)

    def _find(self, path: bytes) -> tuple[dict[str, Endpoint], list[str]]:
        segments, values = split_path(path), list[str]()
        node = _walk(self._root, segments, len(PREFIX), values) if segments[: len(PREFIX)] == PREFIX else None
        return ({} if node is None else node.endpoints), values

    def _add(self, operation: Operation) -> None:
        node, endpoint = self._root, build_endpoint(operation)
        for segment in endpoint.route.path.strip("/").split("/"):
            if segment.startswith("{"):
                node.placeholder = node.placeholder or _Node()
                node = node.placeholder
            else:
                node = node.children.setdefault(segment, _Node())
        node.endpoints[endpoint.route.method] = endpoint


def build_endpoint(operation: Operation) -> Endpoint:
    """How HTTP serves an operation that has a route."""
    route = operation.route
    assert route is not None, "those of the connections alone are not served here"
    names = route.names
    has_body = route.method in _BODY_METHODS
    has_query = route.takes_query or (not has_body and not route.is_proxy)
    return Endpoint(
        operation, route, names, {} if not has_query else _query_types(operation, names), has_body
    )


def split_path(path: bytes) -> list[str]:
    """The decoded segments of a raw path; a `%2F` inside a segment is no separator.

    Raises:
        InvalidRequest: it is not percent-encoded UTF-8.
    """
    segments = path.decode("latin-1").split("/")[1:]
    if b"%" not in path:
        return segments
    try:
        return [unquote_to_bytes(segment).decode() for segment in segments]
    except UnicodeDecodeError:
        raise InvalidRequest.of_field("path", "must be percent-encoded UTF-8") from None


def allowed_methods(endpoints: dict[str, Endpoint]) -> str:
    """The value of `Allow`."""
    methods = {*endpoints, "OPTIONS"} | ({"HEAD"} if "GET" in endpoints else set())
    return ", ".join(sorted(methods))


def _walk(node: _Node, segments: list[str], depth: int, values: list[str]) -> _Node | None:
    if depth == len(segments):
        return node if node.endpoints else None
    child = node.children.get(segments[depth])
    if child is not None:
        found = _walk(child, segments, depth + 1, values)
        if found is not None:
            return found
    if node.placeholder is None or not segments[depth]:
        return None
    values.append(segments[depth])
    found = _walk(node.placeholder, segments, depth + 1, values)
    if found is None:
        values.pop()
    return found


def _query_types(operation: Operation, names: tuple[str, ...]) -> dict[str, str]:
    """The params that are not in the path, with the JSON type that their text is read as."""
    return {name: kind for name, kind in _json_types(operation.params).items() if name not in names}


@cache  # as many entries as there are models; pydantic takes milliseconds for each
def _json_types(params: type[BaseModel]) -> dict[str, str]:
    properties = params.model_json_schema(by_alias=True).get("properties", {})
    return {name: _json_type(schema) for name, schema in properties.items()}


def _json_type(schema: dict[str, object]) -> str:
    options = schema.get("anyOf")
    kinds = [option.get("type") for option in options] if isinstance(options, list) else [schema.get("type")]
    return next((kind for kind in kinds if kind in ("integer", "boolean")), "string")
