"""What the admin of another account may try: to see or change what is not theirs, and to cost much."""

import re
from typing import Any

import orjson

from broker.operations.registry import Operation
from broker.rest.routing import build_endpoint
from tests.attack.attack import MIB, Attack
from tests.attack.target import BULK, HOST, OTHER_HOST, PRIVATE, PROJECT, WITNESSED
from tests.attack.wire import Caller, Reply, call_of
from tests.bad_input.stage import PARAMS, REGISTRY

# What stands in the requests of `tests.bad_input` → what the account `demo` has.
_NAMES = {"own": PROJECT, "there": PRIVATE, "imports": BULK, "v": "kept"}
# Ask for nothing of another account's: whoever may ask gets an answer of his own.
_OWN = {
    "getVersion", "getHealth", "servertime", "ping", "connect", "login", "admin/createProgram",
    "getProducerPrograms",
    "filterPrograms", "listProjects", "createProject", "admin/getLivePrograms", "getDashboard",
    "filterStatistics", "filterImageStatistics", "filterAudit", "purgeImages", "warmImages", "listUsers",
    "listRoles", "getCurrentUser", "updateCurrentUser", "createUser", "createApiToken", "listApiTokens",
    "createVisitor",
}  # fmt: skip
_INSIDE = (
    "http://127.0.0.1:{port}/", "http://localhost:{port}/", "http://[::1]:{port}/", "http://2130706433:{port}/",
    "http://0x7f.1:{port}/", "http://[::ffff:127.0.0.1]:{port}/", "http://169.254.169.254/latest/meta-data/",
    "http://0.0.0.0:{port}/", "http://10.0.0.1/", "file:///etc/passwd", "gopher://127.0.0.1:{port}/",
)  # fmt: skip


def _params(caller: Caller, operation: Operation) -> dict[str, Any]:
    target = caller.target
    known = {"{revision}": target.revision_id, "{event}": target.event_id, "{user}": target.user_id}

    def ours(value: Any) -> Any:
        if isinstance(value, str):
            return known.get(value, _NAMES.get(value, value))
        if isinstance(value, dict):
            return {name: ours(one) for name, one in value.items()}
        return [ours(one) for one in value] if isinstance(value, list) else value

    told: dict[str, Any] = ours(PARAMS[operation.name])
    return told


async def _call(caller: Caller, operation: Operation, host: str, token: str) -> Reply:
    params = _params(caller, operation)
    route = operation.route
    assert route is not None
    path = re.sub(r"\{(\w+)\}", lambda match: str(params.pop(match[1])), route.path)
    if not build_endpoint(operation).has_body:
        path += "?" + "&".join(f"{name}={value}" for name, value in params.items()) if params else ""
        return await caller.ask(route.method, path, host=host, token=token)
    whole = params.get(route.whole_body or "", params)
    media_type = route.consumes[0] if isinstance(whole, list) else route.consumes[-1]
    return await caller.ask(
        route.method, path, orjson.dumps(whole), host=host, token=token, media_type=media_type
    )


async def _other_account(caller: Caller, _size: int) -> None:
    """Every operation on what the account `demo` has, by the admin of `other` at their own host."""
    target = caller.target
    secrets = [
        target.user_id,
        target.revision_id,
        target.event_id,
        f'"{PRIVATE}"',
        f'"{WITNESSED}"',
        '"of":"demo"',
    ]
    for operation in REGISTRY.routed:
        if operation.name == "storeValue":  # makes one of his own, in a project that he does not have
            continue
        reply = await _call(caller, operation, OTHER_HOST, target.other_token)
        if operation.name not in _OWN:
            assert reply.status in (400, 403, 404, 409), (
                f"{operation.name}: {reply.status} {reply.body[:200]!r}"
            )
            reply.require(reply.status)
        elif operation.name not in ("admin/createProgram", "createProject", "createUser", "createApiToken"):
            told = reply.body.decode(errors="replace")
            assert not [secret for secret in secrets if secret in told], f"{operation.name}: {told[:300]}"


async def _foreign_token(caller: Caller, _size: int) -> None:
    """Every operation at the host of `demo`, with the token of `other`: it is no token there."""
    for operation in REGISTRY.routed:
        if operation.name != "login":
            reply = await _call(caller, operation, HOST, caller.target.other_token)
            assert (reply.status, reply.error) == (401, "invalid_token"), f"{operation.name}: {reply}"


async def _foreign_socket(caller: Caller, _size: int) -> None:
    """The same over WebSocket: in the head, in the query, in the params."""
    token = caller.target.other_token
    for query, extra in ((f"?access_token={token}", ""), ("", f"Authorization: Bearer {token}\r\n")):
        async with caller.connected(caller.target.ws_port) as socket:
            request = f"GET /api/v1/ws{query} HTTP/1.1\r\nHost: {HOST}\r\nUpgrade: websocket\r\n{extra}"
            request += "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "
            await socket.send(f"{request}dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode())
            (await socket.reply(20)).require(401)
    async with caller.joined() as socket:
        for method in ("subscribe", "getProgram", "admin/deleteProgram"):
            params = {"programId": PRIVATE, "access_token": token}
            await socket.send(call_of(method, orjson.dumps(params)))
            async for _, payload in socket.frames():
                assert orjson.loads(payload)["error"]["code"] == 401, (method, payload)
                break


async def _inside(caller: Caller, _size: int) -> None:
    """Data sources that lead inside the network, by every spelling."""
    token, path = caller.target.other_token, "/projects/probe"
    await caller.ask("POST", "/projects", b'{"id":"probe","name":"p"}', host=OTHER_HOST, token=token)
    urls = [url.format(port=caller.target.http_port) for url in _INSIDE]
    for number, url in enumerate(urls):
        source = {"id": "s", "name": "s", "type": "api", "url": url}
        content = {"dataSources": [source]}
        revision = {"title": "T", "status": "published", "version": f"v{number}", "content": content}
        made = await caller.ask(
            "POST", f"{path}/application/revisions", orjson.dumps(revision), host=OTHER_HOST, token=token
        )
        if made.status == 201:
            reply = await _call_source(caller, f"v{number}", token)
            assert reply.status in (400, 403, 404, 502), f"{url}: {reply.status} {reply.body[:200]!r}"
            assert b'"status":"ok"' not in reply.body
        else:
            made.require(400)


async def _call_source(caller: Caller, version: str, token: str) -> Reply:
    operation = REGISTRY.find("getApplicationRequest")
    assert operation is not None
    assert operation.route is not None
    values = {"projectId": "probe", "version": version, "dataSourceId": "s"}
    path = re.sub(r"\{(\w+)\}", lambda match: values[match[1]], operation.route.path)
    return await caller.ask("GET", path, host=OTHER_HOST, token=token)


async def _growing_patch(caller: Caller, size: int) -> None:
    """A JSON Patch whose copies double the document each time."""
    token, path = caller.target.other_token, "/projects/grown/application/revisions"
    await caller.ask("POST", "/projects", b'{"id":"grown","name":"p"}', host=OTHER_HOST, token=token)
    revision = b'{"title":"T","content":{"a":"' + b"x" * 1_000 + b'"}}'
    made = await caller.ask("POST", path, revision, host=OTHER_HOST, token=token)
    patch = [{"op": "copy", "from": "/content", "path": f"/content/c{number}"} for number in range(size)]
    reply = await caller.ask(
        "PATCH", f"{path}/{made.require(201).json['id']}", orjson.dumps(patch), host=OTHER_HOST, token=token,
        media_type="application/json-patch+json",
    )  # fmt: skip
    reply.require(400, 409, 413)


async def _broken_import(caller: Caller, size: int) -> None:
    """An import whose last event is wrong leaves nothing, and costs its reading."""
    token = caller.target.other_token
    await caller.ask("POST", "/programs", b'{"id":"mine","name":"m"}', host=OTHER_HOST, token=token)
    events = b'{"event":"A#b","metadata":{"text":"%s"}},' % (b"x" * 900) * (size // 1_000)
    body = b'{"events":[' + events + b'{"event":"no name"}]}'
    reply = await caller.ask("POST", "/programs/mine/events/import", body, host=OTHER_HOST, token=token)
    reply.require(400)
    kept = await caller.ask("GET", "/programs/mine/events", host=OTHER_HOST, token=token)
    assert kept.json == []


ATTACKS = (
    Attack("ids of another account", "tenant", "404, and nothing is told", _other_account, is_scaled=False),
    Attack("token of another account", "tenant", "401 everywhere", _foreign_token, is_scaled=False),
    Attack("socket with a foreign token", "tenant", "401 everywhere", _foreign_socket, is_scaled=False),
    Attack("data sources inside", "tenant", "403, by every spelling", _inside, is_scaled=False),
    Attack("patch that doubles", "tenant", "refused before it is large", _growing_patch, 40, is_scaled=False),
    Attack("import that fails at its end", "tenant", "nothing is kept", _broken_import, 8 * MIB, cpu_s=6.0,
           growth_bytes=200 * MIB),
)  # fmt: skip
