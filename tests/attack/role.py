"""What somebody with a user in the account may try beyond the rights of its role."""

import asyncio
import base64
from typing import Any

import jwt
import orjson

from tests.attack.attack import MIB, Attack
from tests.attack.stranger import BODIES
from tests.attack.target import POLLED, PRIVATE, PROJECT, WITNESSED
from tests.attack.wire import Caller
from tests.deployments.instance import PASSWORD

# Which every change of a program names.
_TIMES: dict[str, object] = {"scheduledStartTime": None, "scheduledEndTime": None}


async def _api_token(caller: Caller, _size: int) -> None:
    """A stolen API token makes no second one, sets no password, and ends with its revocation.

    As a bearer token it is as good as what it is exchanged for, and no better.
    """
    token = caller.target.tokens["admin"]
    made = (await caller.ask("POST", "/users/me/tokens", b'{"name":"stolen"}', token=token)).require(201).json
    form = {"grant_type": "api_token", "token": made["token"], "client_id": "Test"}
    exchanged = (await caller.ask("POST", "/token", orjson.dumps(form))).require(200).json["access_token"]
    password = orjson.dumps({"password": "taken-over"})
    for stolen in (made["token"], exchanged):
        (await caller.ask("GET", "/users/me", token=stolen)).require(200)
        (await caller.ask("POST", "/users/me/tokens", b'{"name":"heir"}', token=stolen)).require(403)
        for path in ("/users/me", f"/users/{caller.target.user_id}"):
            (await caller.ask("PUT", path, password, token=stolen)).require(403)
    (await caller.ask("DELETE", f"/users/me/tokens/{made['id']}", token=token)).require(204)
    async with asyncio.timeout(10):  # five are promised
        for stolen in (made["token"], exchanged):
            while (await caller.ask("GET", "/users/me", token=stolen)).status != 401:  # noqa: ASYNC110 - see above
                await asyncio.sleep(0.2)


async def _escalation(caller: Caller, _size: int) -> None:
    """Every way up: an own role, a new user, other people's things."""
    target = caller.target
    someone = orjson.dumps({"username": "heir", "password": PASSWORD, "role": "admin"})
    for role in ("producer", "user", "client"):
        token = target.tokens[role]
        tries: tuple[tuple[str, str, Any], ...] = (
            ("POST", "/users", someone),
            ("PUT", "/users/me", b'{"role":"admin"}'),
            ("PUT", f"/users/{target.user_id}", b'{"projectIds":["show","other"]}'),
            ("GET", "/audit", None),
            ("POST", "/projects", b'{"id":"mine","name":"m"}'),
            ("DELETE", f"/projects/{PROJECT}?cascade=true", None),
        )
        for method, path, body in tries:
            reply = await caller.ask(method, path, body, token=token)
            reply.require(400, 403)
    for role in ("user", "client"):
        event = b'{"event":"Score#update","metadata":{}}'
        reply = await caller.ask("POST", f"/programs/{WITNESSED}/events", event, token=target.tokens[role])
        reply.require(403)
    reply = await caller.ask("GET", f"/programs/{PRIVATE}/events", token=target.tokens["client"])
    reply.require(403)


async def _forged_tokens(caller: Caller, _size: int) -> None:
    """Tokens without a signature, with one of another kind, and with claims that were changed."""
    token = caller.target.tokens["client"]
    head, claims, signature = token.split(".")
    known = jwt.decode(token, options={"verify_signature": False}) | {"role": "admin"}
    kid = jwt.get_unverified_header(token)["kid"]
    keys = await caller.send(b"GET /.well-known/jwks.json HTTP/1.1\r\nHost: demo.localhost\r\n\r\n")
    public = next(key for key in keys.json["keys"] if key["kid"] == kid)["x"]
    forged = [
        jwt.encode(known, None, algorithm="none", headers={"kid": kid}),
        jwt.encode(known, base64.urlsafe_b64decode(public + "="), algorithm="HS256", headers={"kid": kid}),
        f"{head}.{_part(known)}.{signature}",
        f"{head}.{claims}.",
        f"{head}.{claims}.{signature[:-4]}AAAA",
        f"{_part({'alg': 'EdDSA', 'kid': '../../etc/passwd'})}.{claims}.{signature}",
        "." * 8_000,
    ]
    for one in forged:
        (await caller.ask("GET", f"/programs/{PRIVATE}", token=one)).require(401)


def _part(claims: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(claims)).rstrip(b"=").decode()


async def _reopened(caller: Caller, size: int) -> None:
    """A producer renames while an admin closes: a program that was made private stays so."""
    tokens = caller.target.tokens
    program = orjson.dumps({"id": "raced", "name": "r", "projectId": PROJECT})
    (await caller.ask("POST", "/programs", program, token=tokens["admin"])).require(201, 409)
    for number in range(size):
        opened = _TIMES | {"id": "raced", "name": "r", "access": "public"}
        (await caller.ask("PUT", "/programs/raced", orjson.dumps(opened), token=tokens["admin"])).require(200)
        rename = orjson.dumps(_TIMES | {"id": "raced", "name": f"name {number}"})
        close = orjson.dumps(_TIMES | {"id": "raced", "name": "r", "access": "private"})
        await asyncio.gather(
            *(caller.ask("PUT", "/programs/raced", rename, token=tokens["producer"]) for _ in range(4)),
            caller.ask("PUT", "/programs/raced", close, token=tokens["admin"]),
        )
        now = await caller.ask("GET", "/programs/raced", token=tokens["admin"])
        assert now.json["access"] == "private", f"reopened in round {number}"


async def _bodies(caller: Caller, size: int) -> None:
    """The bodies that a stranger may send, by who is heard out."""
    token = caller.target.tokens["producer"]
    for build in BODIES.values():
        body = build(size)
        for path in (
            f"/programs/{POLLED}/events",
            f"/projects/{PROJECT}/application/revisions",
            f"/storage/{PROJECT}",
        ):
            reply = await caller.ask("POST", path, body, token=token)
            reply.require(400, 413)
            assert len(reply.body) < 65_536


async def _source_parameters(caller: Caller, size: int) -> None:
    """Faults without end in what goes to a data source."""
    token = caller.target.tokens["producer"]
    faulty = (
        b'{"a":[' + b"[]," * (size // 3) + b"[]]}",
        b'{"' + b"n" * 1_000 + b'":[' + b"{}," * (size // 3) + b"0]}",
    )
    for body in faulty:
        path = f"/projects/{PROJECT}/application/requests/1/inside"
        reply = await caller.ask("POST", path, body, token=token)
        reply.require(400, 403, 404, 413)
        assert len(reply.body) < 65_536


async def _searches(caller: Caller, size: int) -> None:
    """Searches that no index helps."""
    token = caller.target.tokens["user"]
    for text in ("%25" * 300, "_" * 900, "x" * 990, "%5C" * 300, "%E2%80%AE" * 100):
        for _ in range(size):
            reply = await caller.ask("GET", f"/programs/bulk/events/filter?search={text}", token=token)
            reply.require(200, 400, 429)


ATTACKS = (
    Attack("stolen API token", "role", "no heir, no password, no life after it", _api_token,
           is_scaled=False),
    Attack("ways up", "role", "403", _escalation, is_scaled=False),
    Attack("forged tokens", "role", "401", _forged_tokens, is_scaled=False),
    Attack("renaming while it is closed", "role", "what was made private stays private", _reopened, 15),
    Attack("bodies of producers", "role", "refused, at the cost of reading", _bodies, MIB - 500,
           cpu_s=6.0, is_most=True),
    Attack("parameters of data sources", "role", "refused, at the cost of reading", _source_parameters,
           MIB // 2, is_most=True),
    Attack("searches", "role", "bounded by the statement's time", _searches, 2, cpu_s=4.0),
)  # fmt: skip
