"""What somebody without any right may try at polls that count signed or issued visitors only."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jwt
import orjson
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.attack.attack import Attack
from tests.attack.target import OTHER_HOST, POLLED, PROJECT
from tests.attack.wire import Caller, call_of
from tests.auth.visitor_tokens import pem, signed

_VOTES = f"/responses/demo/{PROJECT}/{POLLED}"
_HANDED_OUT = "/responses/visitor"
_ASKING = 16  # connections
_BURST, _PER_S = 2_000, 20.0  # new visitors of one address


def _parts(*parts: bytes) -> str:
    return ".".join(jwt.utils.base64url_encode(part).decode() for part in parts)


def _unsigned(header: dict[str, Any], signature: bytes = b"") -> str:
    claims = {"sub": "ada", "aud": "votes:demo", "exp": 4_000_000_000}
    return _parts(orjson.dumps(header), orjson.dumps(claims), signature)


def _forged(caller: Caller) -> Iterator[str]:
    """Tokens that nobody has signed for these votes, or not so."""
    public, theirs, ours = pem(caller.target.signer), Ed25519PrivateKey.generate(), caller.target.signer
    jwk = jwt.algorithms.OKPAlgorithm.to_jwk(theirs.public_key(), as_dict=True)
    # The public key for a secret, no signature, and keys that the token itself brings.
    for secret in (public, f"{public}\n", "x" * 32):
        head = _parts(b'{"alg":"HS256"}', b'{"sub":"a","aud":"votes:demo","exp":4000000000}')
        mac = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256).sign(
            head.encode(), secret.encode()
        )
        yield f"{head}.{_parts(mac)}"
    yield from (_unsigned({"alg": alg}) for alg in ("none", "None", "NONE", "", "EdDSA", "HS256"))
    yield _unsigned({"alg": "EdDSA", "jwk": jwk}, theirs.sign(b"anything"))
    yield _unsigned({"alg": "EdDSA", "kid": "../../dev/null", "jku": "http://127.0.0.1/"}, bytes(64))
    yield _unsigned({"alg": "ES256"}, bytes(64))
    yield _unsigned({"alg": "RS256"}, bytes(256))
    yield signed(key=theirs, algorithm="EdDSA")
    # Signed by the right key, for something else.
    for claims in (
        {"aud": "votes:other"},
        {"aud": "demo"},
        {"aud": None},
        {"exp": 5},
        {"exp": None},
        {"exp": "4000000000"},
        {"nbf": 4_000_000_000},
        {"programId": "another"},
        {"subject": ""},
        {"subject": 5},
        {"subject": "a" * 129},
        {"subject": "a\nb"},
    ):
        yield signed(key=ours, algorithm="EdDSA", **claims)
    # No token at all, or one that is hard to read.
    yield from ("ada", "..", "a.b.c", "\u0000", "\U0001f600" * 200, "a" * 1_025, "A" * 44)
    yield _parts(b"[" * 300, b"]" * 300, b"")
    yield _parts(b'{"alg":"EdDSA","a":' + b"9" * 600 + b"}", b"{}", b"")


def _vote(caller: Caller, kind: str, visitor: str) -> dict[str, object]:
    """In the poll that counts visitors of a kind, `signed` or `issued`."""
    context = {"signed": caller.target.signed_id, "issued": caller.target.issued_id}[kind]
    return {"measureName": kind, "contextId": context, "measureValue": 0, "visitorId": visitor}


async def _forged_visitors(caller: Caller, size: int) -> None:
    """None of them counts, at either door; visitors that are genuine do, afterwards."""
    tokens = list(_forged(caller))
    elsewhere = await caller.ask("POST", _HANDED_OUT, b"{}", host=OTHER_HOST)
    tokens += [elsewhere.require(200).json["visitorId"], await _new_visitor(caller, flipped=True)]
    async with caller.joined() as socket:
        for number in range(size):
            entry = _vote(caller, ("signed", "issued")[number % 2], tokens[number // 2 % len(tokens)])
            told = await caller.ask("POST", _VOTES, orjson.dumps({"responses": [entry]}))
            told.require(400)
            await socket.send(call_of("respond", orjson.dumps({"programId": POLLED} | entry), number))
            async for _, payload in socket.frames(10):
                assert b'"result"' not in payload, entry
                break
            else:
                raise AssertionError(f"no answer to {entry}")
    honest = replace(caller, source="127.66.1.7")
    genuine = {"signed": signed("ada", caller.target.signer, "EdDSA"), "issued": await _new_visitor(honest)}
    for kind, visitor in genuine.items():
        told = await honest.ask("POST", _VOTES, orjson.dumps({"responses": [_vote(honest, kind, visitor)]}))
        assert told.require(202).json in ({"accepted": 1, "duplicates": 0}, {"accepted": 0, "duplicates": 1})


async def _new_visitor(caller: Caller, *, flipped: bool = False) -> str:
    told = (await caller.ask("POST", _HANDED_OUT, b"{}")).require(200)
    token = str(told.json["visitorId"])
    return token[:-1] + ("A" if token[-1] != "A" else "B") if flipped else token


def _batch(build: Callable[[int], str]) -> Callable[[Caller, int], Any]:
    """Votes of as many visitors as one request takes, over and over."""

    async def run(caller: Caller, size: int) -> None:
        entries = [_vote(caller, "signed", build(number)) for number in range(1_000)]
        body = orjson.dumps({"responses": entries})
        for _ in range(size):
            (await caller.ask("POST", _VOTES, body)).require(400, 413, 429)

    return run


async def _visitors(caller: Caller, size: int) -> None:
    """One address wants as many visitors as it can get; another one gets its own."""
    began_s, statuses = time.monotonic(), Counter[int]()

    async def ask(numbers: range) -> None:
        for _ in numbers:
            reply = await caller.ask("POST", _HANDED_OUT, b'{"visitorId":"made up"}')
            statuses[reply.require(200, 429).status] += 1

    await asyncio.gather(*(ask(range(first, size, _ASKING)) for first in range(_ASKING)))
    most = _BURST + _PER_S * (time.monotonic() - began_s) + 1
    assert statuses[200] <= most, f"{statuses[200]} of {size} were handed out"
    honest = await replace(caller, source="127.66.2.9").ask("POST", _HANDED_OUT, b"{}")
    assert honest.status == 200, f"a visitor after {size} of another address: {honest}"


ATTACKS = (
    Attack("forged visitors", "stranger", "do not count, genuine ones do", _forged_visitors, 90),
    Attack("many long visitors", "stranger", "refused at the first", _batch(lambda n: f"{n:04}" * 250), 10),
    Attack("many forged visitors", "stranger", "refused at the first",
           _batch(lambda n: _unsigned({"alg": "EdDSA", "n": n}, bytes(64))), 10),
    Attack("visitors for one address", "stranger", "no more than the limits allow", _visitors, 2_400,
           cpu_s=10.0, is_scaled=False),
)  # fmt: skip
