"""What reads, validates or reports on untrusted bytes costs no more than a small multiple of reading them.

Every reader that strangers reach is here: JSON at both doors, params of every operation, forms, queries,
paths, headers, tokens, import bodies, patches and data sources. That an attack does no harm through the real
ingress and the real gateway is in `tests/deployments/test_killers.py`.
"""

import base64
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import anyio
import pytest
from pydantic import BaseModel, TypeAdapter

from broker.auth import identity_tokens, tokens
from broker.domain.data_sources import SourceCall, build_request, find_data_source
from broker.domain.patches import apply_json_patch, apply_merge_patch
from broker.domain.revisions import WRITABLE, live_content
from broker.domain.strict_json import parse_json
from broker.fetching.bodies import BodyReader
from broker.fetching.connections import READ_BYTES
from broker.fetching.reply_parser import ReplyParser
from broker.operations.invoke import validate
from broker.operations.registry import Operation
from broker.resources import following
from broker.resources.application_requests import require_parameters
from broker.resources.imports import _body_elements
from broker.rest.account import account_of_host
from broker.rest.callers import HEADER, Callers
from broker.rest.reply import _is_known
from broker.rest.request import (
    FORM_TYPE,
    bearer_token,
    leading_token,
    negotiate,
    parse_body,
    parse_query,
    read_headers,
)
from broker.rest.routing import RouteTable, build_endpoint
from broker.rest.trusted_proxies import TrustedProxies
from tests.bad_input.cost import HEAD_SIZES, WRITTEN_BYTES, refusal_of, require_cheap
from tests.bad_input.stage import PARAMS, REGISTRY

Make = Callable[[int], Any]


@pytest.fixture(autouse=True)
def _collected_seldom() -> Iterator[None]:
    """As in replicas and gateways; at Python's 700 the collector takes six times as long as reading."""
    before = gc.get_threshold()
    gc.set_threshold(20_000)
    yield
    gc.set_threshold(*before)


def repeat(part: bytes, size: int, between: bytes = b",") -> bytes:
    return between.join([part] * (size // (len(part) + len(between))))


def names(size: int) -> bytes:
    """Members of short names, none of them twice."""
    return b",".join(b'"%x":0' % number for number in range(size // 9))


JSON: dict[str, Make] = {
    "a name repeated after many": lambda size: b"{" + names(size) + b',"0":1}',
    "a name repeated in many objects": lambda size: b"[" + repeat(b'{"a":1,"a":1}', size) + b"]",
    "many names, none twice": lambda size: b"{" + names(size) + b"}",
    "names that are written otherwise": lambda size: (
        b"[" + repeat(b'{"\\u0061":1}', size) + b',{"a":1,"\\u0061":1}]'
    ),
    "an integer too large behind many leaves": lambda size: (
        b'{"' + b"k" * (size // 2) + b'":[' + repeat(b"0", size // 2) + b",9007199254740993]}"
    ),
    "empty objects and an escaped quote": lambda size: b'["\\u0022",' + repeat(b"{}", size) + b"]",
    "small objects": lambda size: b"[" + repeat(b'{"":0}', size) + b"]",
    "brackets, then no JSON": lambda size: b"[" + repeat(b"[]", size) + b",nul]",
    "brackets without end": lambda size: b"[" * size,
    "objects without end": lambda size: b'{"a":' * (size // 5),
    "towers": lambda size: b"[" + repeat(b"[" * 60 + b"]" * 60, size) + b"]",
    "towers too deep at the end": lambda size: b"[" + repeat(b"[]", size) + b"," + b"[" * 99 + b"]" * 100,
    "one long number": lambda size: b"1" * size,
    "long numbers": lambda size: b"[" + repeat(b"1" * 400, size) + b"]",
    "a long fraction": lambda size: b"0." + b"1" * size,
    "one long text": lambda size: b'"' + b"x" * size + b'"',
    "backslashes": lambda size: b'"' + b"\\\\" * (size // 2) + b'"',
    "a text that does not end": lambda size: b'{"a":"' + b"\\\\" * (size // 2),
    "a long name, wrong inside": lambda size: b'{"' + b"k" * size + b'":' + b"[" * 100,
    "white space": lambda size: b" " * size,
    "no UTF-8": lambda size: b'"' + b"\xff" * size + b'"',
}


@pytest.mark.parametrize("kind", JSON)
def test_reading_json(kind: str) -> None:
    require_cheap(parse_json, JSON[kind])
    require_cheap(lambda sent: parse_json(sent, "events[3]"), JSON[kind])


def texts(size: int) -> list[str]:
    return ["x"] * (size // 4)


PARAM: dict[str, Make] = {
    "numbers": lambda size: [0] * (size // 2),
    "texts": texts,
    "lists": lambda size: [[]] * (size // 3),
    "objects": lambda size: [{}] * (size // 3),
    "many members": lambda size: {f"{number:x}": 0 for number in range(size // 9)},
    "many members in a list": lambda size: [{f"{number:x}": 0 for number in range(size // 9)}],
    "a long name before many values": lambda size: {"k" * (size // 2): [[]] * (size // 6)},
    "a long name before many names": lambda size: {
        "k" * (size // 2): {f"{number:x}": [] for number in range(size // 20)}
    },
    "a long text": lambda size: "x" * size,
    "commas": lambda size: "," * size,
    "marks that combine": lambda size: "a" + "\u0301\u0323" * (size // 4),
    "a long name and number": lambda size: "9" * size,
    "dots": lambda size: "a." * (size // 2),
    "at signs": lambda size: "a@" + "a-" * (size // 2),
    "hashes": lambda size: "A#" + "b-" * (size // 2) + "#",
}


TWO_SIZES = (32 << 10, 64 << 10)


def operations() -> list[Any]:
    return [pytest.param(operation, id=operation.name) for operation in REGISTRY.operations]


@pytest.mark.parametrize("operation", operations())
def test_validating_params(operation: Operation) -> None:
    base = PARAMS.get(operation.name, {})
    fields = [info.alias or name for name, info in operation.params.model_fields.items()]

    def read(raw: Any) -> object:
        return validate(operation.params, raw)

    for make in PARAM.values():
        require_cheap(read, lambda size, make=make: base | dict.fromkeys(fields, make(size)), TWO_SIZES)
    require_cheap(read, lambda size: base | {f"{number:x}": 0 for number in range(size // 9)}, TWO_SIZES)
    require_cheap(read, lambda size: {"k" * size: 0}, TWO_SIZES)


@pytest.mark.parametrize("operation", operations())
def test_no_list_is_validated_beyond_its_first_fault(operation: Operation) -> None:
    """A validator that tells of every element makes a fault of each: whoever adds a field is told here."""
    assert unbounded(operation.params) == []


def unbounded(model: type[BaseModel]) -> list[str]:
    """Places of the model's schema at which the number of faults is the sender's choice."""
    found: list[str] = []

    def look(schema: Any, path: str) -> None:
        if isinstance(schema, dict):
            kind = schema.get("type")
            if kind in ("list", "set", "frozenset", "tuple") and not schema.get("fail_fast"):
                found.append(f"{path}: a {kind} without fail_fast")
            if (
                kind == "dict"
                and isinstance(schema.get("schema", schema), dict)
                and "values_schema" in schema
            ):
                found.append(f"{path}: a dict whose values are validated")
            for name, inner in schema.items():
                if name not in ("metadata", "serialization", "json_schema"):
                    look(inner, f"{path}.{name}")
        elif isinstance(schema, list):
            for index, inner in enumerate(schema):
                look(inner, f"{path}[{index}]")

    look(TypeAdapter(model).core_schema, model.__name__)
    return found


def test_what_is_unbounded_is_found() -> None:
    class Item(BaseModel):
        names: list[str]
        by_name: dict[str, list[int]]

    assert len(unbounded(Item)) == 3


@pytest.mark.parametrize("kind", PARAM)
def test_subscribing(kind: str) -> None:
    for read in (following.parse_subscribe, following.parse_unsubscribe):
        for field in ("programId", "channel", "since", "history", "bogus"):
            require_cheap(read, lambda size, field=field: {field: PARAM[kind](size)})


BODIES: dict[str, Make] = {
    "one field": lambda size: b"a=" + b"x" * size,
    "many fields": lambda size: repeat(b"a=1", size, b"&"),
    "names alone": lambda size: b"&" * size,
    "percent signs": lambda size: b"a=" + b"%" * size,
    "escapes": lambda size: b"a=" + b"%41" * (size // 3),
    "no UTF-8": lambda size: b"a=" + b"%ff" * (size // 3),
    "plus signs": lambda size: b"a=" + b"+" * size,
    "semicolons": lambda size: b";" * size,
}


@pytest.mark.parametrize("kind", BODIES)
def test_forms_and_queries(kind: str) -> None:
    require_cheap(lambda sent: parse_body(sent, FORM_TYPE), BODIES[kind])
    for name in ("filterPrograms", "getApplicationRequest"):
        operation = REGISTRY.find(name)
        assert operation is not None
        endpoint = build_endpoint(operation)
        require_cheap(lambda sent, endpoint=endpoint: parse_query(sent, endpoint), BODIES[kind], HEAD_SIZES)


def test_paths() -> None:
    table = RouteTable(REGISTRY.routed)
    for start in (b"/api/v1/programs/", b"/api/v1/", b"/"):
        for part in (b"a/", b"/", b"%2F", b"%", b"%ff/", b"projects/", b"..%2f"):
            require_cheap(table.find, partial(_long_path, start, part), HEAD_SIZES)


def _long_path(start: bytes, part: bytes, size: int) -> bytes:
    return start + part * (size // len(part))


HEADERS: dict[str, Make] = {
    "one value": lambda size: b"x" * size,
    "commas": lambda size: b"," * size,
    "semicolons": lambda size: b";" * size,
    "qualities": lambda size: repeat(b"a/b;q=0.1", size),
    "addresses": lambda size: repeat(b"127.0.0.1", size),
    "colons": lambda size: b"[" + b":" * size,
    "dots": lambda size: b"." * size,
    "labels": lambda size: b"a." * (size // 2) + b"localhost",
    "spaces": lambda size: b"Bearer" + b" " * size,
    "tags": lambda size: repeat(b'W/"a"', size),
}


@pytest.mark.parametrize("kind", HEADERS)
def test_headers(kind: str) -> None:
    proxies = TrustedProxies(("127.0.0.0/8", "::1"))
    readers: list[Callable[[bytes], object]] = [
        lambda sent: bearer_token({b"authorization": sent}),
        lambda sent: negotiate({b"accept": sent}, ("application/json", "application/x-ndjson")),
        lambda sent: account_of_host(sent.decode("latin-1"), "localhost", "demo"),
        lambda sent: _is_known('"b"', sent.decode("latin-1")),
        lambda sent: read_headers([(b"host", sent), (b"accept", sent), (b"accept", sent)], sent),
        lambda sent: proxies.caller("127.0.0.1", sent.decode("latin-1")),
        lambda sent: read_headers([(b"x", part) for part in sent.split(b",")], None),
    ]
    for read in readers:
        require_cheap(read, HEADERS[kind], HEAD_SIZES)


def test_headers_of_strangers_are_not_remembered() -> None:
    """What is kept of a request has a bound beside the number of requests."""
    proxies = TrustedProxies(("127.0.0.0/8",))
    callers = Callers("key", proxies)
    caches = proxies._recall, callers._remembered
    before = [cache.cache_info().currsize for cache in caches]
    for number in range(10):
        proxies.caller("127.0.0.1", f"{number}" * 1_000)
        headers = {HEADER.encode(): b"key public 127.0.0.1", b"x-forwarded-for": b""}
        forwarded = [(b"x-forwarded-for", f"{number}".encode() * 1_000)]
        callers.identify({"headers": forwarded}, headers)
    assert [cache.cache_info().currsize for cache in caches] == before


def encoded(text: bytes) -> str:
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


_TOKEN_HEADER = b'{"alg":"EdDSA","kid":"k"}'
TOKEN: dict[str, Make] = {
    "dots": lambda size: "." * size,
    "one part": lambda size: "a" * size,
    "a large header": lambda size: f"{encoded(b'[' + repeat(b'[]', size) + b']')}.a.a",
    "a deep header": lambda size: f"{encoded(b'[' * size)}.a.a",
    "a large number": lambda size: f"{encoded(b'1' * size)}.a.a",
    "a large payload": lambda size: (
        f"{encoded(_TOKEN_HEADER)}.{encoded(b'[' + repeat(b'{}', size) + b']')}.a"
    ),
    "no ASCII": lambda size: "é" * size,
    "no base64": lambda size: "=." * (size // 2),
}


@pytest.mark.parametrize("kind", TOKEN)
def test_tokens(kind: str) -> None:
    require_cheap(tokens.read_kid, TOKEN[kind])
    readers: list[Callable[[str], object]] = [identity_tokens.read_jose_header, identity_tokens.read_issuer]
    for read in readers:  # of what the params of a log-in let through, 16 KiB
        require_cheap(read, TOKEN[kind], HEAD_SIZES)
    require_cheap(leading_token, lambda size: b'{"access_token":' + b" " * size)
    require_cheap(leading_token, lambda size: b'{"access_token":"' + b"\\\\" * (size // 2))


IMPORTS: dict[str, Make] = {
    "nothing but names": lambda size: b"{" + names(size) + b"}",
    "a long name": lambda size: b'{"' + b"k" * size + b'":0}',
    "brackets in an element": lambda size: b'{"events":[[' + repeat(b"[]", size) + b"]]}",
    "an element that does not end": lambda size: b'{"events":[{"a":"' + b"\\\\" * (size // 2),
    "texts in an element": lambda size: b'{"events":[[' + repeat(b'""', size) + b"]]}",
    "numbers": lambda size: b'{"events":[' + repeat(b"0", size) + b"]}",
    "a long number": lambda size: b'{"events":[' + b"1" * size,
    "white space": lambda size: b'{"events":[' + b" " * size,
    "commas": lambda size: b'{"events":[{}' + b"," * size,
    "closing brackets": lambda size: b'{"events":[{' + b"]" * size,
}


@pytest.mark.parametrize("kind", IMPORTS)
@pytest.mark.parametrize("part", [1, 4096, 1 << 20])
def test_import_bodies(kind: str, part: int) -> None:
    def read(body: bytes) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            for at in range(0, len(body), part):
                yield body[at : at + part]

        async def run() -> None:
            async for _ in _body_elements(chunks(), "p", 1 << 20):
                pass

        anyio.run(run)

    if part > 1:
        require_cheap(read, IMPORTS[kind])
    else:  # Python alone takes a microsecond for each part: only that it is refused and in a few words
        refusal_of(read, IMPORTS[kind](20_000))


def test_patches() -> None:
    def document() -> dict[str, Any]:
        return {"title": "t", "content": {"a": ["x"] * 100, "b": {"c": 1}}}

    def read(patch: Any) -> object:
        if isinstance(patch, dict):
            return apply_merge_patch(document(), patch, WRITABLE)
        return apply_json_patch(document(), patch, WRITABLE, 64 << 10)

    patches = partial(require_cheap, read, sizes=TWO_SIZES, bytes_each=WRITTEN_BYTES)
    for make in PARAM.values():
        patches(lambda size, make=make: {"content": make(size)})
        patches(lambda size, make=make: [{"op": "add", "path": "/content/z", "value": make(size)}])
        patches(lambda size, make=make: [{"op": make(size), "path": make(size)}])
    for copied in ("/content", "/content/a"):
        doubling = [{"op": "copy", "from": copied, "path": f"/content/c{n}"} for n in range(200)]
        patches(lambda _size, doubling=doubling: doubling)
    patches(lambda size: [{"op": "test", "path": "/" + "a/" * (size // 2), "value": 1}])
    patches(lambda size: [{"op": "remove", "path": "~" * size}])
    patches(lambda size: [{"op": "add", "path": "/content/a/0", "value": 1}] * min(1_000, size // 40))


_CHUNKED_REPLY = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
REPLY: dict[str, Callable[[int], bytes]] = {
    "one header again and again": lambda size: b"HTTP/1.1 200 OK\r\n" + b"a:\r\n" * (size // 4),
    "headers": lambda size: b"HTTP/1.1 200 OK\r\n" + b"".join(b"%x:\r\n" % n for n in range(size // 8)),
    "informational replies": lambda size: b"HTTP/1.1 100 Continue\r\n\r\n" * (size // 25),
    "chunks of a byte": lambda size: _CHUNKED_REPLY + b"1\r\nx\r\n" * (size // 6),
    "a trailer": lambda size: _CHUNKED_REPLY + b"0\r\na: " + b"x" * size,
    "trailers": lambda size: _CHUNKED_REPLY + b"0\r\n" + b"a:\r\n" * (size // 4),
}


@pytest.mark.parametrize("kind", REPLY)
def test_replies_of_upstreams(kind: str) -> None:
    def read(raw: bytes) -> object:
        reading = ReplyParser(lambda _head: BodyReader("", 1 << 20), is_head=False)
        for start in range(0, len(raw), READ_BYTES):
            reading.feed(memoryview(raw)[start : start + READ_BYTES])
        return reading

    require_cheap(read, REPLY[kind])


def test_data_sources() -> None:
    def read(members: dict[str, Any]) -> object:
        found = find_data_source([{"id": "a", "type": "api", "url": "https://a.example/"} | members], "a")
        assert found is not None
        return build_request(found, SourceCall("GET", {}, {}))

    for make in PARAM.values():
        for member in (
            "name",
            "type",
            "url",
            "method",
            "methods",
            "headers",
            "query",
            "body",
            "timeoutMs",
            "z",
        ):
            require_cheap(read, lambda size, member=member, make=make: {member: make(size)}, TWO_SIZES)
        require_cheap(
            lambda query: require_parameters(query, "query"), lambda size, make=make: {"a": make(size)}
        )
    require_cheap(read, lambda size: {"url": "https://a.example/?" + "a=1&" * (size // 4)})


def test_live_views() -> None:
    for make in PARAM.values():
        require_cheap(live_content, lambda size, make=make: {"content": make(size)}, TWO_SIZES)
    require_cheap(live_content, lambda size: {"tokencount" * (size // 10): 1})
    require_cheap(live_content, lambda size: {"\uff50\u0301\u0323" * (size // 8): 1})
