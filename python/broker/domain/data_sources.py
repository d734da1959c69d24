"""API data sources: requests that a project configures, and what callers may override.

A data source is an entry of `dataSources` in a revision's content. It holds defaults; a caller's query
parameters and the members of its JSON body take their place one by one. Of the caller's headers only those
go on that the data source lists, besides `Accept`, and `Content-Type` where the data source has none of its
own; what authenticates the caller to us, and what belongs to one connection, never does.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import orjson
from pydantic import ConfigDict, Field, InstanceOf, ValidationError

from broker.domain.strict_json import require_depth
from broker.domain.values import FIRST_FAULT, Model
from broker.errors import InvalidRequest, MethodNotAllowed, field_path

Method = Literal["GET", "POST", "PUT", "DELETE"]
METHODS: tuple[Method, ...] = ("GET", "POST", "PUT", "DELETE")
MAX_TIMEOUT_MS = 60_000
MAX_CACHE_S = 86_400
_MAX_URL_CHARACTERS = 8192  # no longer one is fetched
_BODY_METHODS = frozenset({"POST", "PUT"})
_FORM = "application/x-www-form-urlencoded"
_JSON = "application/json"
_CONTENT_TYPE = "content-type"
_ALWAYS_TAKEN = frozenset({"accept", _CONTENT_TYPE})
# Of one connection (RFC 9110, section 7.6.1), or made by the fetcher from the request.
_HOP_BY_HOP = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_CALLERS_OWN = frozenset({"authorization", "cookie", "cookie2"})
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")  # a token (RFC 9110, section 5.6.2)
_HEADER_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]{0,8192}")

Scalar = str | int | float | bool
SourceParameters = Mapping[str, Scalar | list[Scalar] | None]
# Taken as they are: the validator would report each invalid value, prefixed with the whole name.
ParameterObject = InstanceOf[dict[str, Scalar | list[Scalar] | None]]
HeaderObject = InstanceOf[dict[str, Scalar | None]]
_SCALARS = (str, int, float)  # booleans are integers


class DataSource(Model):
    """One configured API. Members that are not known here are for the project's own use.

    Attributes:
        method, methods: what callers may use; neither allows all four, and so does a stored empty list.
        query, headers, body: the defaults.
        cache_seconds: how long a good reply to a GET may be used again; 0 asks every time.
    """

    model_config = ConfigDict(extra="ignore")

    id: str
    name: str | None = None
    type: Literal["api"]
    url: str
    method: Method | None = None
    methods: Annotated[list[Method], FIRST_FAULT] | None = None
    headers: HeaderObject | None = None
    query: ParameterObject | None = None
    body: Any = None
    timeout_ms: int | None = Field(default=None, ge=1, le=MAX_TIMEOUT_MS)
    cache_seconds: float | None = Field(default=None, ge=0, le=MAX_CACHE_S)

    def require_method(self, method: str) -> None:
        """Raise MethodNotAllowed unless callers may use `method`."""
        allowed = self.methods or ([self.method] if self.method else METHODS)
        if method not in allowed:
            also = ("HEAD",) if "GET" in allowed else ()
            raise MethodNotAllowed(
                f"the methods of this data source are {', '.join(allowed)}",
                sorted({*allowed, *also, "OPTIONS"}),
            )


@dataclass(frozen=True, slots=True)
class SourceCall:
    """What the caller sent; `headers` by name in lower case, `body` None for none."""

    method: str
    query: SourceParameters
    headers: Mapping[str, str]
    body: Any = None


@dataclass(frozen=True, slots=True)
class OutgoingRequest:
    """What is sent to the data source's server; header names in lower case."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | None


def find_data_source(sources: object, data_source_id: str) -> DataSource | None:
    """The data source of this id among a content's `dataSources`, or None.

    Raises:
        InvalidRequest: it is there and cannot be used; the text names the member at fault, not its value.
    """
    entries = sources if isinstance(sources, list) else []
    for entry in entries:
        if isinstance(entry, dict) and entry.get("id") == data_source_id:
            try:
                source = DataSource.model_validate(entry, by_alias=True, by_name=False)
                require_headers(source.headers or {}, "headers")
                require_parameters(source.query or {}, "query")
            except ValidationError as error:
                fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
                raise _misconfigured(data_source_id, f"{field_path(fault['loc'])}: {fault['msg']}") from None
            except InvalidRequest as error:
                raise _misconfigured(data_source_id, error.message) from None
            return source
    return None


def require_methods(sources: object, field: str) -> None:
    """Raise InvalidRequest for the first of a content's `dataSources` whose `methods` is an empty list.

    Other sources are stored whatever they look like, because a request of one that cannot be used names the
    member at fault. This one can be used: it allows all methods, where somebody meant to allow none. Those
    that were stored before go on doing so.
    """
    entries = sources if isinstance(sources, list) else []
    for index, entry in enumerate(entries):
        if isinstance(entry, dict) and entry.get("methods") == []:
            message = "must name a method; without this member all are allowed"
            raise InvalidRequest.of_field(f"{field}[{index}].methods", message)


def require_parameters(parameters: Mapping[str, object], field: str) -> None:
    """Raise InvalidRequest for the first that is neither a scalar nor a list of scalars nor null."""
    for name, value in parameters.items():
        values = value if isinstance(value, list) else [value]
        if value is not None and not all(isinstance(each, _SCALARS) for each in values):
            message = "must be a text, a number, true, false, a list of such, or null"
            raise InvalidRequest.of_field(field_path([name], field), message)


def require_headers(headers: Mapping[str, object], field: str) -> None:
    """Raise InvalidRequest for the first that is neither a scalar nor null."""
    for name, value in headers.items():
        if value is not None and not isinstance(value, _SCALARS):
            message = "must be a text, a number, true, false, or null"
            raise InvalidRequest.of_field(field_path([name], field), message)


def build_request(source: DataSource, call: SourceCall) -> OutgoingRequest:
    """The caller's request laid over the defaults.

    Raises:
        MethodNotAllowed: the data source does not allow the method.
        InvalidRequest: a header, of the caller's or of the data source, cannot be sent; or the caller's body
            is nested too deeply.
    """
    source.require_method(call.method)
    require_depth(call.body, "body")
    headers = _headers(source, call.headers)
    body = None
    if call.method in _BODY_METHODS:
        merged = merge_body(source.body, call.body)
        if merged is not None:
            headers.setdefault(_CONTENT_TYPE, _JSON)
            body = _encode(merged, headers[_CONTENT_TYPE])
    if body is None:
        headers.pop(_CONTENT_TYPE, None)
    return OutgoingRequest(call.method, _url(source, call.query), headers, body)


def merge_body(default: Any, given: Any) -> Any:
    """The members of `given` in place of those of `default`; what is no object is taken whole."""
    if given is None:
        return default
    if isinstance(default, dict) and isinstance(given, dict):
        return default | given
    return given


def _url(source: DataSource, query: SourceParameters) -> str:
    """The URL with its parameters: the caller's, else the defaults, else those that it is written with."""
    if len(source.url) > _MAX_URL_CHARACTERS:
        raise _misconfigured(source.id, f"url: must not be over {_MAX_URL_CHARACTERS} characters")
    try:
        parts = urlsplit(source.url)
        written = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        raise _misconfigured(source.id, "url: is not a URL") from None
    merged: dict[str, Any] = {}
    for name, value in written:
        merged.setdefault(name, []).append(value)
    for given in (source.query or {}, query):
        merged |= {name: value for name, value in given.items() if value is not None}
    pairs = [(name, _text(value)) for name, values in merged.items() for value in _listed(values)]
    try:
        return urlunsplit((parts.scheme, parts.netloc, parts.path, urlencode(pairs), ""))
    except UnicodeEncodeError:
        raise InvalidRequest.of_field("query", "must be Unicode text") from None


def _headers(source: DataSource, given: Mapping[str, str]) -> dict[str, str]:
    defaults = {
        name.lower(): _text(value) for name, value in (source.headers or {}).items() if value is not None
    }
    for name, value in defaults.items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise _misconfigured(source.id, f"headers.{name[:256]}: is not a header that can be sent")
    listed = {name.lower() for name in source.headers or {}} | _ALWAYS_TAKEN
    named = {name.strip().lower() for name in given.get("connection", "").split(",")}
    taken = listed - _HOP_BY_HOP - _CALLERS_OWN - named
    if _CONTENT_TYPE in defaults:
        # The caller's is about the body that came to us: over HTTP always JSON, over WebSocket there is none.
        taken -= {_CONTENT_TYPE}
    headers = {name: value for name, value in defaults.items() if name not in _HOP_BY_HOP}
    for name in sorted(taken & given.keys()):
        if not _HEADER_VALUE.fullmatch(given[name]):
            raise InvalidRequest.of_field(f"headers.{name}", "must not have control characters")
        headers[name] = given[name]
    return headers


def _encode(body: Any, content_type: str) -> bytes:
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type == _FORM and isinstance(body, dict):
        pairs = [(name, _text(value)) for name, values in body.items() for value in _listed(values)]
        return urlencode(pairs).encode()
    return orjson.dumps(body)


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _text(value: Any) -> str:
    """A value as text: booleans and what is inside as JSON writes them."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _misconfigured(data_source_id: str, fault: str) -> InvalidRequest:
    return InvalidRequest(f"the data source {data_source_id} cannot be used: {fault}")
