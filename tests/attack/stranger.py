"""What somebody without any right may try: at the HTTP port, and at the gateways'."""

import asyncio
import base64
import os
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import replace

from tests.attack.attack import MIB, Attack, Run
from tests.attack.target import BULK, HOST, POLLED, PRIVATE, PROJECT, WITNESSED
from tests.attack.wire import UPGRADE, Caller, Connection, call_of, frame, request_of
from tests.deployments.hostile import HARMLESS, HOSTILE

# -- bodies

Build = Callable[[int], bytes]


def _filled(part: bytes, size: int) -> bytes:
    return b",".join([part] * max(1, size // (len(part) + 1)))


def _names(size: int) -> Iterator[bytes]:
    return (b'"%07d":0' % number for number in range(size // 11))


BODIES: dict[str, Build] = {
    "one name again and again": lambda size: b"{" + _filled(b'"a":0', size) + b"}",
    "names that differ": lambda size: b"{" + b",".join(_names(size)) + b"}",
    "small objects": lambda size: b'{"metadata":[' + _filled(b'{"a":0}', size) + b"]}",
    "deep values": lambda size: b'{"metadata":' + b"[" * (size // 2) + b"]" * (size // 2) + b"}",
    "faulty elements": lambda size: b'{"responses":[' + _filled(b"{}", size) + b"]}",
    "faulty long names": lambda size: (
        b'{"responses":[{' + _filled(b'"' + b"n" * 1_000 + b'":0', size) + b"}]}"
    ),
    "long numbers": lambda size: b'{"metadata":' + b"9" * size + b"}",
    "exponents": lambda size: b'{"metadata":[' + _filled(b"1e308", size) + b"]}",
    "escapes": lambda size: b'{"metadata":"' + b"\\u0041" * (size // 6) + b'"}',
    "spaces": lambda size: b'{"metadata":0' + b" " * size + b"}",
}
_OPEN = (
    ("POST", "/token"),
    ("POST", "/servertime"),
    ("POST", f"/storage/{PROJECT}"),
    ("POST", f"/responses/demo/{PROJECT}/{POLLED}"),
    ("POST", f"/projects/{PROJECT}/application/requests/1/inside"),
    ("POST", "/programs"),
    ("PUT", f"/programs/{PRIVATE}"),
)


def _http_body(build: Build) -> Run:
    async def run(caller: Caller, size: int) -> None:
        body = build(size)
        for method, path in _OPEN:
            reply = await caller.ask(method, path, body)
            reply.require(400, 401, 403, 404, 405, 413, 429)
            assert len(reply.body) < 65_536, f"{path} answered with {len(reply.body)} bytes"

    return run


def _message(build: Build) -> Run:
    async def run(caller: Caller, size: int) -> None:
        body = build(size - 200)
        for method in ("login", "respond", "storeValue", "subscribe", "nothing"):
            async with caller.joined() as socket:
                await socket.send(call_of(method, body))
                async for _, payload in socket.frames(10):
                    assert len(payload) < 65_536, f"{method} answered with {len(payload)} bytes"
                    break

    return run


# -- requests


async def _malformed(caller: Caller, _size: int) -> None:
    async def one(name: str, request: bytes) -> None:
        async with caller.connected() as connection:
            if await connection.send(request, 20):
                connection.writer.write_eof()
            reply = await connection.reply(6)
        if reply.status == 200 and name in HARMLESS:
            return
        assert reply.status == 0 or 400 <= reply.status < 500, (name, reply.status)
        assert reply.status == 0 or reply.is_own_error, f"{name}: not ours: {reply}"

    await asyncio.gather(*(one(name, request) for name, request in HOSTILE.items()))


async def _trailers(caller: Caller, _size: int) -> None:
    """What stands in a trailer must not be taken for a header (RFC 9110, section 6.5.1)."""
    parts = [("Transfer-Encoding", "chunked"), ("TE", "trailers"), ("Content-Type", "application/json")]
    head = request_of("POST", "/servertime", headers=parts)
    body = b'10\r\n{"requestTime":1\r\n1\r\n}\r\n0\r\n'
    for trailer in (
        b"Host: nobody.localhost",
        b"Authorization: Bearer none",
        b"X-Forwarded-For: 203.0.113.9",
    ):
        reply = await caller.send(head + body + trailer + b"\r\n\r\n")
        assert reply.status in (0, 200, 400), f"{trailer!r}: {reply}"
        if reply.status == 400:
            reply.require(400)


async def _twice(caller: Caller, _size: int) -> None:
    twice = await caller.ask("GET", "/version", headers=[("Authorization", "Bearer none")], token="none")
    twice.require(400)
    # HAProxy itself turns this one away, and can only do that without a word.
    twice = await caller.ask("GET", "/version", headers=[("Host", "other.localhost")])
    assert twice.status in (0, 400), twice


async def _inner_pages(caller: Caller, _size: int) -> None:
    for path in (
        "/-/routes",
        "/-/healthz",
        "/metrics",
        "/readyz",
        "/stats",
        "/haproxy?stats",
        "/api/ray/version",
    ):
        reply = await caller.send(f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        reply.require(404)


async def _other_spellings(caller: Caller, _size: int) -> None:
    """Pages for operators and files of the product by other spellings, and with a forged ingress."""
    forged = (
        "X-Broker-Ingress: 0123456789abcdef operations 127.0.0.1\r\nConnection: close, X-Broker-Ingress\r\n"
    )
    for target in (
        "/%6detrics",
        "//metrics",
        "/./readyz",
        "http://localhost/metrics",
        "*",
        "/api%2Fv2/imgproxy/demo/-",
        "/overlay/..%2f..%2fsettings.py",
        "/dashboard/../settings.py",
        "/overlay/%00",
        "/dashboard/%ff",
    ):
        for extra in ("Connection: close\r\n", forged):
            host = "localhost" if target.startswith("http") else HOST
            reply = await caller.send(f"GET {target} HTTP/1.1\r\nHost: {host}\r\n{extra}\r\n".encode())
            reply.require(400, 404)


async def _redirects(caller: Caller, size: int) -> None:
    """The way to a gateway: whatever the request names, the place is ours and the header is one."""
    async with caller.connected() as connection:
        for number in range(size):
            program = f"made-{number}%0d%0aSet-Cookie:a"
            path = f"/programs/{program}/events/stream?since=%0d%0a&url=//evil.example"
            await connection.send(request_of("GET", path))
            reply = await connection.reply()
            assert reply.status == 307, reply
            assert reply.headers["location"].startswith("http://localhost:"), reply.headers
            assert "set-cookie" not in reply.headers


async def _unread(caller: Caller, size: int) -> None:
    """Large public documents, asked for again and again by those who read nothing."""
    documents = b"".join(request_of("GET", f"/{name}.json") for name in ("openapi", "asyncapi")) * 4
    async with AsyncExitStack() as stack:
        for _ in range(size):
            connection = await stack.enter_async_context(caller.connected(buffer_bytes=1_024))
            await connection.send(documents, 5)
        await asyncio.sleep(1)
        other = replace(caller, source=_next_to(caller.source))
        honest = await other.ask("GET", "/version", wait_s=30)
        assert honest.status == 200, f"an honest request beside {size} that read nothing: {honest}"


async def _strange_keys(caller: Caller, size: int) -> None:
    """Access tokens that name keys which are not there, and heads that are nested as deep as they may."""
    claims = _base64(b'{"sub":"a"}')
    deep = _base64(b"[" * 5_000)
    async with caller.connected() as connection:
        for number in range(size):
            head = deep if number % 10 == 0 else _base64(b'{"alg":"EdDSA","kid":"%d"}' % number)
            await connection.send(request_of("GET", "/version", token=f"{head}.{claims}.AAAA"))
            (await connection.reply()).require(401)


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


async def _images_inside(caller: Caller, size: int) -> None:
    """Images and descriptions of what is inside the network, each at another address."""
    for number in range(size):
        url = f"http%3A%2F%2F127.0.{number // 250 % 250}.{1 + number % 250}%2F"
        target = f"/api/v2/imgproxy/demo/{'f=json' if number % 2 else 'w=100'}?url={url}"
        request = f"GET {target} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n"
        (await caller.send(request.encode())).require(403, 503)


async def _queries(caller: Caller, size: int) -> None:
    parameters = "&".join(f"a{number}={number}" for number in range(size))[:7_000]
    for query in (parameters, "ids=" + ",".join(["a"] * 3_000), "from=%00&to=%ff", "limit=" + "9" * 6_000):
        (await caller.ask("GET", f"/programs/{WITNESSED}/events?{query}")).require(400, 413, 414)


_INVENTING = 8  # connections
_MOST = 12_000  # connections of one network, where there is room for many more
_REPLICAS = 8  # at most


async def _accounts(caller: Caller, size: int) -> None:
    """Each of so many requests names another account; each account that is looked for costs a query."""
    began_s = time.monotonic()
    statuses = Counter[int]()
    path = f"/programs/{WITNESSED}/events"

    async def invent(numbers: range) -> None:
        async with caller.connected() as connection:
            for number in numbers:
                await connection.send(request_of("GET", path, host=f"account-{number}.localhost"))
                statuses[(await connection.reply()).require(404, 429).status] += 1

    await asyncio.gather(*(invent(range(first, size, _INVENTING)) for first in range(_INVENTING)))
    most = _REPLICAS * (100 + 10 * (time.monotonic() - began_s))  # so many of one address in each replica
    assert statuses[404] <= most, f"{statuses[404]} of {size} were looked for"
    other = replace(caller, source=_next_to(caller.source))
    honest = await other.ask("GET", path)
    assert honest.status == 200, f"an honest request after {size} made-up accounts: {honest}"


# -- addresses


async def _forged_address(caller: Caller, _size: int) -> None:
    """Wrong log-ins under other names from one address, which says each time to be another."""
    statuses = []
    for number in range(40):
        form = b'{"grant_type":"password","client_id":"Test","username":"nobody%d","password":"no"}' % number
        forged = [("X-Forwarded-For", f"203.0.113.{number}"), ("Forwarded", f"for=203.0.113.{number}")]
        reply = await caller.ask("POST", "/token", form, headers=forged)
        statuses.append(reply.require(401, 429).status)
    assert 429 in statuses[30:], "40 wrong log-ins of one address were all judged"
    other = replace(caller, source=_next_to(caller.source))
    form = b'{"grant_type":"password","client_id":"Test","username":"user","password":"correct-horse"}'
    reply = await other.ask("POST", "/token", form)
    assert reply.status == 200, f"somebody else's log-in: {reply.status} {reply.body[:200]!r}"


def _next_to(address: str) -> str:
    head, _, last = address.rpartition(".")
    return f"{head}.{int(last) % 250 + 1}"


async def _log_ins(caller: Caller, size: int) -> None:
    form = b'{"grant_type":"password","client_id":"Test","username":"admin%d","password":"no"}'
    replies = await asyncio.gather(*(caller.ask("POST", "/token", form % number) for number in range(size)))
    for reply in replies:
        reply.require(401, 429, 503)
    assert sum(reply.status == 401 for reply in replies) <= 60, "more were judged than two limits"


async def _invented_api_tokens(caller: Caller, size: int) -> None:
    tokens = (f"brk_{number:043}" for number in range(size))
    replies = await asyncio.gather(*(caller.ask("GET", "/version", token=token) for token in tokens))
    for reply in replies:
        reply.require(401, 429, 503)
    assert any(reply.status == 429 for reply in replies), "every one of them was looked for"


# -- connections


async def _half_heads(caller: Caller, size: int) -> None:
    async with AsyncExitStack() as stack:
        for number in range(size):
            one = replace(caller, source=f"127.{200 + number % 40}.7.{1 + number // 40 % 250}")
            try:
                connection = await stack.enter_async_context(one.connected())
            except OSError:
                break  # turned away, which is as good
            await connection.send(b"GET /api/v1/version HTTP/1.1\r\nHost: demo.loc", 5)
        honest = await caller.ask("GET", "/version", wait_s=30)
        assert honest.status == 200, f"an honest request beside {size} half heads: {honest}"


async def _large_heads(caller: Caller, size: int) -> None:
    """Heads of over 16 KiB, to which nothing is replied, from callers who hang up."""
    before = _open_files(caller)
    head = request_of("GET", "/version", headers=[("X-Long", "x" * 16_500)])
    for number in range(size):
        async with caller.connected() as connection:
            await connection.send(head)
            if not number % 10:
                assert (await connection.reply(6)).status == 0
    await asyncio.sleep(8)
    held = _open_files(caller) - before
    assert held < 100, f"{held} connections of callers who have gone"


def _open_files(caller: Caller) -> int:
    """How many files the processes of the ingress have open, also one that is being replaced."""
    count = 0
    for pid, kind in caller.target.processes().items():
        with suppress(OSError):  # it has just ended
            count += len(os.listdir(f"/proc/{pid}/fd")) if kind == "ingress" else 0  # noqa: PTH208 - names will do
    return count


async def _crowd_of_one(caller: Caller, size: int) -> None:
    """So many kept connections of one address; those of other networks must have room."""
    async with AsyncExitStack() as stack:
        for _ in range(size):
            try:
                connection = await stack.enter_async_context(caller.connected())
            except OSError:
                break
            if not await connection.send(b"GET /api/v1/version HTTP/1.1\r\n", 5):
                break
        honest = await _in_network(caller, 1).ask("GET", "/version", wait_s=30)
        assert honest.status == 200, f"an honest request beside {size} connections: {honest}"


async def _crowds(caller: Caller, size: int, port: int, request: bytes, status: int) -> None:
    """So many networks, one after the other, that keep all connections that they can get."""
    async with AsyncExitStack() as stack:
        for number in range(1, size + 1):
            one, taken, is_served = _in_network(caller, number), 0, True
            while is_served and taken < _MOST:
                is_served = all(
                    await asyncio.gather(*(_keep(one, stack, port, request, status) for _ in range(100)))
                )
                taken += 100
        async with _in_network(caller, size + 1).connected(port) as connection:
            await connection.send(request)
            honest = await connection.reply(30, is_head=True)
            assert honest.status == status, f"an honest client beside {size} networks: {honest}"


async def _keep(caller: Caller, stack: AsyncExitStack, port: int, request: bytes, status: int) -> bool:
    """Whether one more connection is served; it stays open."""
    try:
        connection = await stack.enter_async_context(caller.connected(port))
    except OSError:
        return False
    await connection.send(request)
    return (await connection.reply(30, is_head=True)).status == status


async def _crowds_at_ingress(caller: Caller, size: int) -> None:
    await _crowds(caller, size, caller.target.http_port, b"TRACE / HTTP/1.1\r\nHost: localhost\r\n\r\n", 405)


async def _crowds_at_gateway(caller: Caller, size: int) -> None:
    request = UPGRADE.format(query="", host=HOST, key="AAAAAAAAAAAAAAAAAAAAAA==", extra="").encode()
    await _crowds(caller, size, caller.target.ws_port, request, 101)


def _in_network(caller: Caller, number: int) -> Caller:
    """As `caller`, in a network of that number."""
    first, second, third, last = caller.source.split(".")
    return replace(caller, source=f"{first}.{second}.{(int(third) + number) % 250}.{last}")


async def _slow_bodies(caller: Caller, size: int) -> None:
    """Bodies that come a byte at a time hold no replica up, and make none more."""
    async with AsyncExitStack() as stack:
        slow: list[Connection] = []
        for _ in range(size):
            connection = await stack.enter_async_context(caller.connected())
            head = request_of("POST", "/servertime", b"x" * 1_000).removesuffix(b"x" * 1_000)
            if await connection.send(head, 5):
                slow.append(connection)
        for _ in range(12):  # longer than Ray Serve takes to add a replica
            await asyncio.sleep(1)
            await asyncio.gather(*(connection.send(b"{", 5) for connection in slow))
            other = replace(caller, source=_next_to(caller.source))
            honest = await other.ask("GET", "/version", wait_s=30)
            assert honest.status == 200, f"an honest request beside {size} slow bodies: {honest}"


async def _slow_readers(caller: Caller, size: int) -> None:
    """Readers of a long list that take nothing; lists of others must come."""
    async with AsyncExitStack() as stack:
        for _ in range(size):
            connection = await stack.enter_async_context(caller.connected(buffer_bytes=1_024))
            await connection.send(request_of("GET", f"/programs/{BULK}/events"), 5)
        await asyncio.sleep(0.5)
        token = caller.target.tokens["producer"]
        for path in (f"/programs/{WITNESSED}/events", f"/programs/{BULK}/events/filter?limit=5"):
            other = replace(caller, source=_next_to(caller.source))
            honest = await other.ask("GET", path, token=token, wait_s=30)
            assert honest.status == 200, (
                f"a list beside {size} readers: {honest.status} {honest.body[:200]!r}"
            )


# -- what is kept


async def _filled_storage(caller: Caller, size: int) -> None:
    """One address stores as much as it may; who has a token can still store and delete."""
    value = b'{"metadata":{"text":"' + b"x" * 250_000 + b'"}}'
    statuses: list[int] = []
    for _ in range(size):
        statuses.append(
            (await caller.ask("POST", f"/storage/{PROJECT}", value)).require(201, 413, 429).status
        )
        if statuses[-1] != 201:
            break
    assert statuses.count(201) <= 16, "one address has stored over 4 MB"
    token = caller.target.tokens["producer"]
    (await caller.ask("POST", f"/storage/{PROJECT}", b'{"id":"ours","metadata":{}}', token=token)).require(
        201
    )
    (await caller.ask("DELETE", f"/storage/{PROJECT}/ours", token=token)).require(204)


async def _invented_polls(caller: Caller, size: int) -> None:
    """Measures that no event asks for; what an event asks for can still be answered."""
    entry = b'{"measureName":"m%d","contextId":"%s","measureValue":0,"visitorId":"v"}'
    event_id = caller.target.event_id.encode()
    path = f"/responses/demo/{PROJECT}/{POLLED}"
    for start in range(0, size, 1_000):
        entries = b",".join(entry % (number, event_id) for number in range(start, start + 1_000))
        (await caller.ask("POST", path, b'{"responses":[' + entries + b"]}")).require(202, 400, 413, 429)
    other = replace(caller, source=_next_to(caller.source))
    asked = b'{"responses":[{"measureName":"who","contextId":"%s","measureValue":0,"visitorId":"%s"}]}'
    told = await other.ask("POST", path, asked % (event_id, caller.source.encode()))
    told.require(202)


# -- the gateways' port


async def _handshakes(caller: Caller, _size: int) -> None:
    for head in (
        b"GET /api/v1/ws HTTP/1.1\r\n" + b"X-A: " + b"a" * MIB + b"\r\n\r\n",
        b"GET /api/v1/ws HTTP/1.1\r\n" + b"".join(b"X-%d: a\r\n" % number for number in range(20_000)),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 50,
        b"POST /api/v1/ws HTTP/1.1\r\nHost: demo.localhost\r\n\r\n",
        b"GET /api/v1/ws HTTP/1.1\r\nHost: demo.localhost\r\n\r\n",
        b"GET /api/v1/ws HTTP/1.1\r\nHost: nobody.localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    ):
        async with caller.connected(caller.target.ws_port) as connection:
            await connection.send(head, 5)
            reply = await connection.reply(20)
        assert reply.status == 0 or 400 <= reply.status < 500, (head[:60], reply)


async def _streams(caller: Caller, _size: int) -> None:
    path = b"/api/v1/programs/%s/events/stream" % BULK.encode()
    host = b"Host: demo.localhost\r\n"
    for head in (
        b"GET " + path + b" HTTP/1.1\r\n" + host + b"X-A: " + b"a" * MIB + b"\r\n\r\n",
        b"GET " + path + b"?since=" + b"a" * MIB + b" HTTP/1.1\r\n" + host + b"\r\n",
        b"GET " + path + b"?" + b"a&" * 5_000 + b" HTTP/1.1\r\n" + host + b"\r\n",
        b"GET " + path + b" HTTP/1.1\r\n" + host + b"Last-Event-ID: " + b":" * 9_000 + b"\r\n\r\n",
        b"GET " + path + b" HTTP/1.1\r\n" + host + b"Authorization: Bearer " + b"a" * 9_000 + b"\r\n\r\n",
        b"POST " + path + b" HTTP/1.1\r\n" + host + b"Content-Length: 9\r\n\r\n",
    ):
        async with caller.connected(caller.target.ws_port) as connection:
            await connection.send(head, 5)
            reply = await connection.reply(20)
        assert reply.status == 0 or 400 <= reply.status < 500, (head[:60], reply)


async def _unread_streams(caller: Caller, size: int) -> None:
    """Streams with a whole history, of which nothing is read; others get theirs."""
    path = f"/programs/{BULK}/events/stream?history=100000"
    async with AsyncExitStack() as stack:
        for _ in range(size):
            opened = caller.connected(caller.target.ws_port, buffer_bytes=1_024)
            connection = await stack.enter_async_context(opened)
            await connection.send(request_of("GET", path), 5)
        await asyncio.sleep(1)
        other = replace(caller, source=_next_to(caller.source))
        async with other.connected(caller.target.ws_port) as connection:
            await connection.send(request_of("GET", f"/programs/{WITNESSED}/events/stream"))
            honest = await connection.reply(is_head=True)
            assert honest.status == 200, f"a stream beside {size} that read nothing: {honest}"


async def _floods_behind_refusals(caller: Caller, size: int) -> None:
    """Who was told that it is over sends on: what is taken does not grow with what is offered."""
    stream = b" /api/v1/programs/%s/events/stream HTTP/1.1\r\nHost: demo.localhost\r\n" % BULK.encode()
    for opening in (b"GET" + stream + b"\r\n", b"POST" + stream + b"Content-Length: 9\r\n\r\n"):
        async with caller.connected(caller.target.ws_port) as connection:
            await connection.send(opening)
            await connection.reply(is_head=True)
            taken = 0
            while taken < size and await connection.send(bytes(1 << 18), 20):
                taken += 1 << 18
        assert taken < _TAKEN_BYTES, f"{taken >> 20} MiB were taken behind {opening[:30]!r}"


async def _made_up_streams(caller: Caller, size: int) -> None:
    """Programs that do not exist, over and over: anonymous callers learn nothing, and nothing is kept."""
    for number in range(size):
        head = b"GET /api/v1/programs/none-%d/events/stream HTTP/1.1\r\nHost: demo.localhost\r\n\r\n"
        async with caller.connected(caller.target.ws_port) as connection:
            await connection.send(head % number, 5)
            reply = await connection.reply(20)
        assert reply.status == 401, reply


async def _frames(caller: Caller, _size: int) -> None:
    bombs = {
        "unmasked": (frame(1, b"{}", masked=False), 1002),
        "reserved bits": (frame(1, b"{}", reserved=0x30), 1002),
        "long ping": (frame(9, b"a" * 126), 1002),
        "fragmented ping": (frame(9, b"a", final=False), 1002),
        "binary": (frame(2, b"{}"), 1003),
        "bad UTF-8": (frame(1, b"\xff\xfe"), 1007),
        "too long": (frame(1, b"")[:1] + b"\xff" + (1 << 40).to_bytes(8, "big") + b"\0\0\0\0", 1009),
        "bad close code": (frame(8, (1005).to_bytes(2, "big")), 1002),
    }
    for name, (data, code) in bombs.items():
        async with caller.joined() as socket:
            await socket.send(data)
            assert await socket.close_code() == code, name


async def _compressed_bomb(caller: Caller, size: int) -> None:
    packer = zlib.compressobj(wbits=-15)
    packed = packer.compress(b"\0" * size) + packer.flush(zlib.Z_SYNC_FLUSH)
    for _ in range(4):
        async with caller.joined(extra="Sec-WebSocket-Extensions: permessage-deflate\r\n") as socket:
            await socket.send(frame(1, packed.removesuffix(b"\0\0\xff\xff"), reserved=0x40))
            assert await socket.close_code() == 1009


async def _fragments(caller: Caller, size: int) -> None:
    async with caller.joined() as socket:
        await socket.send(frame(1, b"a" * 1_000, final=False))
        for _ in range(size // 1_000):
            if not await socket.send(frame(0, b"a" * 1_000, final=False), 5):
                break
        assert await socket.close_code() in (0, 1009)


async def _flood(caller: Caller, size: int) -> None:
    """Calls without a pause, unread; ended as a flood, or simply not taken."""
    message = call_of("getVersion", b"{}")
    async with caller.joined() as socket:
        for _ in range(size // 100):
            if not await socket.send(message * 100, 5):
                break


async def _subscriptions(caller: Caller, size: int) -> None:
    """Names that do not exist, over and over: anonymous callers learn nothing, and nothing is kept."""
    async with caller.joined() as socket:
        for number in range(size):
            await socket.send(call_of("subscribe", b'{"programId":"none-%d"}' % number, number))
        answered = 0
        async for opcode, payload in socket.frames():
            if opcode == 8:
                break
            answered += 1
            assert b'"result"' not in payload
            if answered == size:
                break


async def _recoveries(caller: Caller, size: int) -> None:
    async with caller.joined() as socket:
        for number in range(size):
            params = b'{"programId":"%s","history":1000}' % BULK.encode()
            await socket.send(call_of("subscribe", params, 2 * number), 5)
            await socket.send(
                call_of("unsubscribe", b'{"programId":"%s"}' % BULK.encode(), 2 * number + 1), 5
            )


_CHEAP = "refused, at the cost of reading it"
_TAKEN_BYTES = 64 * MIB  # at most, with what the kernels of both sides hold
_BODY = MIB - 500  # as much as is read at all

ATTACKS = (
    # First, for it is about the number of replicas, which others change.
    Attack("slow bodies", "stranger", "others are served, by the same replicas", _slow_bodies, 100,
           growth_bytes=128 * MIB, may_scale=False),
    *(
        Attack(f"HTTP body: {name}", "stranger", _CHEAP, _http_body(build), _BODY, is_most=True)
        for name, build in BODIES.items()
    ),
    *(
        Attack(f"message: {name}", "stranger", _CHEAP, _message(build), _BODY, is_most=True)
        for name, build in BODIES.items()
    ),
    Attack("malformed requests", "stranger", "the error is ours", _malformed, is_scaled=False),
    Attack("trailers", "stranger", "never taken for headers", _trailers, is_scaled=False),
    Attack("headers twice", "stranger", "400", _twice, is_scaled=False),
    Attack("inner pages", "stranger", "not on the public port", _inner_pages, is_scaled=False),
    Attack("other spellings", "stranger", "lead to nothing", _other_spellings, is_scaled=False),
    Attack("ways to a gateway", "stranger", "lead to ours alone", _redirects, 300),
    Attack("documents unread", "stranger", "others are served", _unread, 60),
    Attack("tokens of strange keys", "stranger", "401, and no query for each", _strange_keys, 300),
    Attack("images inside", "stranger", "403", _images_inside, 200),
    Attack("queries", "stranger", "400", _queries, 2_000, is_scaled=False),
    Attack("made-up accounts", "stranger", "few are looked for, others are served", _accounts, 3_000),
    Attack("forged addresses", "stranger", "count for the one that they come from", _forged_address,
           is_scaled=False, cpu_s=6.0, growth_bytes=256 * MIB),
    Attack("log-ins", "stranger", "no more are judged than the limits allow", _log_ins, 200, cpu_s=5.0,
           growth_bytes=128 * MIB),
    Attack("invented API tokens", "stranger", "few are looked for", _invented_api_tokens, 400, cpu_s=5.0),
    Attack("half heads", "stranger", "others are served", _half_heads, 4_200, cpu_s=6.0,
           growth_bytes=300 * MIB, is_scaled=False),
    Attack("large heads", "stranger", "gone with their callers", _large_heads, 3_000, cpu_s=4.0),
    Attack("connections of one address", "stranger", "others are served", _crowd_of_one, 2_000, cpu_s=4.0,
           growth_bytes=200 * MIB),
    Attack("connections of networks", "stranger", "others are served", _crowds_at_ingress, 4, cpu_s=8.0,
           growth_bytes=200 * MIB, is_most=True),
    Attack("sockets of networks", "stranger", "others are served", _crowds_at_gateway, 4, cpu_s=8.0,
           growth_bytes=200 * MIB, is_most=True),
    Attack("slow readers", "stranger", "others get their lists", _slow_readers, 12, cpu_s=6.0,
           growth_bytes=200 * MIB),
    Attack("filled storage", "stranger", "who has a token can store and delete", _filled_storage, 60,
           growth_bytes=128 * MIB, cpu_s=4.0),
    Attack("invented polls", "stranger", "what the show asks can be answered", _invented_polls, 10_000,
           cpu_s=8.0, growth_bytes=128 * MIB, is_scaled=False),
    Attack("handshakes", "stranger", "refused at once", _handshakes, is_scaled=False),
    Attack("event streams", "stranger", "refused at once", _streams, is_scaled=False),
    Attack("streams unread", "stranger", "others get theirs", _unread_streams, 60),
    Attack("floods behind refusals", "stranger", "no longer read", _floods_behind_refusals, 128 * MIB),
    Attack("streams of made-up programs", "stranger", "nothing is kept for them", _made_up_streams, 300),
    Attack("broken frames", "stranger", "closed with the right code", _frames, is_scaled=False),
    Attack("compressed bombs", "stranger", "1009 before it is inflated", _compressed_bomb, 64 * MIB),
    Attack("endless fragments", "stranger", "1009 at the limit", _fragments, 2 * MIB),
    Attack("floods of calls", "stranger", "over the rate they cost nearly nothing", _flood, 40_000,
           cpu_s=4.0),
    Attack("subscriptions", "stranger", "nothing is kept for them", _subscriptions, 1_000),
    Attack("recoveries", "stranger", "sent in shares, behind the news", _recoveries, 200,
           growth_bytes=128 * MIB),
)  # fmt: skip
