"""What many large requests leave behind that are refused, or whose callers hang up: nothing.

An error holds what was sent for as long as it is held itself, and a process that handles errors in the wrong
way holds them for long.
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
_TOO_LARGE = orjson.dumps({"event": "Score#update", "metadata": {"text": _TEXT}})
_WRONG_EVENT = orjson.dumps({"event": "no name", "metadata": {"text": "x" * 55_000}})
_WRONG_EVENTS = orjson.dumps({"events": [{"event": "no name", "metadata": {"text": "x" * 55_000}}] * 7})
_WRONG_VALUES = orjson.dumps({"id": "no id", "name": ["no", "name"], "metadata": _TEXT, "title": 7})
_ASKED = (
    ("POST", f"/programs/{WITNESSED}/events", _TOO_LARGE),
    ("POST", f"/programs/{WITNESSED}/events", _WRONG_EVENT),
    ("POST", f"/programs/{BULK}/events/import", _WRONG_EVENTS),
    ("POST", f"/projects/{PROJECT}/application/revisions", _WRONG_VALUES),
    ("POST", f"/storage/{PROJECT}", _WRONG_VALUES),
    ("POST", f"/responses/demo/{PROJECT}/{POLLED}", _WRONG_VALUES),
    ("PUT", f"/programs/{WITNESSED}", _WRONG_VALUES),
)
_CALLED = (
    ("producer", {"programId": WITNESSED, "event": "Score#update", "metadata": {"text": _TEXT}}),
    ("producer", {"programId": WITNESSED, "event": "no name", "metadata": {"text": "x" * 55_000}}),
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
    """By validation, by what is too large, and by the rights of a role."""
    tokens = [caller.target.tokens[role] for role in ("producer", "client")]

    async def ask(number: int) -> None:
        method, path, body = _ASKED[number % len(_ASKED)]
        token = tokens[number // len(_ASKED) % 2]
        (await caller.ask(method, path, body, token=token)).require(400, 403, 413, 429)

    await _at_once(size, ask)


async def _hung_up(caller: Caller, size: int) -> None:
    """Requests that would be answered at length, and uploads that break off."""
    token = caller.target.tokens["producer"]
    whole = request_of("GET", f"/programs/{BULK}/events", token=token)
    upload = request_of("POST", f"/programs/{BULK}/events/import", _WRONG_EVENTS, token=token)

    async def ask(number: int) -> None:
        async with caller.connected() as connection:
            if number % 2:
                await connection.send(whole)
                await asyncio.sleep(0.02)
            else:
                await connection.send(upload[:-1_000])

    await _at_once(size, ask)


async def _refused_calls(caller: Caller, size: int) -> None:
    """The same over WebSocket; a connection makes forty calls, and the last goes with its answer underway."""
    token = caller.target.tokens["producer"]

    async def connect(first: int) -> None:
        async with caller.joined() as socket:
            for number in range(first, min(first + 40, size)):
                method, params = _CALLED[number % len(_CALLED)]
                await socket.send(call_of(method, orjson.dumps({"access_token": token} | params), number))
                async for _, payload in socket.frames(30):
                    assert b'"error"' in payload, (method, payload[:200])
                    break
                else:
                    raise AssertionError(f"no answer to {method}")
            await socket.send(call_of(*_last(token)))

    await _at_once(-(-size // 40), lambda number: connect(40 * number))


def _last(token: str) -> tuple[str, bytes]:
    method, params = _CALLED[0]
    return method, orjson.dumps({"access_token": token} | params)


ATTACKS = (
    Attack("refused requests", "role", "none stays in memory", _refused, 420,
           cpu_s=12.0, growth_bytes=_GROWTH_BYTES, is_flat=True),
    Attack("callers who hang up", "role", "none stays in memory", _hung_up, 200,
           cpu_s=12.0, growth_bytes=_GROWTH_BYTES, is_flat=True),
    Attack("refused calls", "role", "none stays in memory", _refused_calls, 400,
           cpu_s=12.0, growth_bytes=_GROWTH_BYTES, is_flat=True),
)  # fmt: skip
