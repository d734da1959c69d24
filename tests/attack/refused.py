"""Large requests that are refused, or whose callers hang up: nothing of them stays in memory.

An error holds the frames that it went through, and these hold what was sent. A process that keeps errors, or
leaves them to the garbage collector, grows with each refused request.
"""

import asyncio
from collections.abc import Awaitable, Callable

import orjson

from tests.attack.attack import MIB, Attack
from tests.attack.target import BULK, POLLED, PROJECT, WITNESSED
from tests.attack.wire import Caller, call_of, request_of

_AT_ONCE = 10
_GROWTH_BYTES = 64 * MIB  # of what is in hand at once
_TEXT = "x" * 390_000
_TOO_LARGE = {"event": "Score#update", "metadata": {"text": _TEXT}}
_WRONG_EVENT = {"event": "no name", "metadata": {"text": "x" * 55_000}}
_IMPORT = orjson.dumps({"events": [_WRONG_EVENT] * 7})
_WRONG_VALUES = orjson.dumps({"id": "no id", "name": ["no", "name"], "metadata": _TEXT, "title": 7})
_ASKED = (
    ("POST", f"/programs/{WITNESSED}/events", orjson.dumps(_TOO_LARGE)),
    ("POST", f"/programs/{WITNESSED}/events", orjson.dumps(_WRONG_EVENT)),
    ("POST", f"/programs/{BULK}/events/import", _IMPORT),
    ("POST", f"/projects/{PROJECT}/application/revisions", _WRONG_VALUES),
    ("POST", f"/storage/{PROJECT}", _WRONG_VALUES),
    ("POST", f"/responses/demo/{PROJECT}/{POLLED}", _WRONG_VALUES),
    ("PUT", f"/programs/{WITNESSED}", _WRONG_VALUES),
)
_CALLED = (
    ("producer", {"programId": WITNESSED} | _TOO_LARGE),
    ("producer", {"programId": WITNESSED} | _WRONG_EVENT),
    ("respond", {"programId": POLLED, "measureName": ["none"], "measureValue": _TEXT}),
    ("subscribe", {"programId": [_TEXT]}),
)


async def _at_once(size: int, one: Callable[[int], Awaitable[None]]) -> None:
    """All numbers up to `size`, a few at a time."""
    numbers = iter(range(size))

    async def some() -> None:
        for number in numbers:
            await one(number)

    await asyncio.gather(*(some() for _ in range(_AT_ONCE)))


async def _refused(caller: Caller, size: int) -> None:
    """Refused because they are invalid or too large, or because the role has no right to them."""
    tokens = [caller.target.tokens[role] for role in ("producer", "client")]

    async def ask(number: int) -> None:
        method, path, body = _ASKED[number % len(_ASKED)]
        token = tokens[number // len(_ASKED) % 2]
        (await caller.ask(method, path, body, token=token)).require(400, 403, 413)

    await _at_once(size, ask)


async def _hung_up(caller: Caller, size: int) -> None:
    """Requests that would be answered at length, and uploads that break off."""
    token = caller.target.tokens["producer"]
    whole = request_of("GET", f"/programs/{BULK}/events", token=token)
    upload = request_of("POST", f"/programs/{BULK}/events/import", _IMPORT, token=token)

    async def ask(number: int) -> None:
        async with caller.connected() as connection:
            if number % 2:
                await connection.send(whole)
                await asyncio.sleep(0.02)
            else:
                await connection.send(upload[:-1_000])

    await _at_once(size, ask)


async def _refused_calls(caller: Caller, size: int) -> None:
    """Refused calls over WebSocket, forty on a connection, which is closed with one more unanswered."""
    token = caller.target.tokens["producer"]

    def call(number: int) -> bytes:
        method, params = _CALLED[number % len(_CALLED)]
        return call_of(method, orjson.dumps({"access_token": token} | params), number)

    async def connect(first: int) -> None:
        async with caller.joined() as socket:
            for number in range(first, min(first + 40, size)):
                await socket.send(call(number))
                async for _, payload in socket.frames(30):
                    assert b'"error"' in payload, (number, payload[:200])
                    break
                else:
                    raise AssertionError(f"no reply to call {number}")
            await socket.send(call(0))

    await _at_once(-(-size // 40), lambda number: connect(40 * number))


ATTACKS = (
    Attack("refused requests", "role", "none stays in memory", _refused, 420,
           cpu_s=12.0, growth_bytes=_GROWTH_BYTES, is_flat=True),
    Attack("callers who hang up", "role", "none stays in memory", _hung_up, 200,
           cpu_s=12.0, growth_bytes=_GROWTH_BYTES, is_flat=True),
    Attack("refused calls", "role", "none stays in memory", _refused_calls, 400,
           cpu_s=12.0, growth_bytes=_GROWTH_BYTES, is_flat=True),
)  # fmt: skip
