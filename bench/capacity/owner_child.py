"""An owner alone with its PostgreSQL, whom gateways follow over links as in the product.

    python -m bench.capacity.owner_child

Prints where it listens, and then for each line `COUNT INTERVAL_US` of its input publishes so many single
events and prints the CPU seconds that its process took meanwhile, and when each call began, in seconds of the
monotonic clock.
"""

import inspect
import json
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import uvloop

from bench.owner import new_command, running
from bench.servers.command import read_lines, turn_until
from broker.errors import BrokerError
from broker.owners.calls import OWNER_CALLS
from broker.owners.owner import Owner
from broker.rpc.listener import Listener
from broker.settings import Settings

HOST = "127.0.0.1"


async def main() -> None:
    """Serve until the input ends."""
    async with running() as (dsn, _):
        owner = await Owner.start(Settings(), dsn, 0)
        called = {name: _answer(getattr(owner, name, None)) for name in OWNER_CALLS.methods}
        listener = Listener[Any](HOST, OWNER_CALLS, SimpleNamespace(**called))
        try:
            address = await listener.address()
            _say(host=address.host, port=address.port, secret=address.secret.hex())
            async for line in read_lines():
                count, interval_us = map(int, line.split())
                cpu_s, began_s = await _publish(owner, count, interval_us / 1e6)
                _say(cpu_s=cpu_s, began_s=began_s)
        finally:
            await listener.close()
            await owner.close()


async def _publish(owner: Owner, count: int, interval_s: float) -> tuple[float, list[float]]:
    """Publish one event after the other, each when it is due; returns CPU seconds and when each began."""
    before_s, first_s = time.process_time(), time.monotonic()
    began_s = []
    for turn in range(count):
        await turn_until(first_s + turn * interval_s)
        began_s.append(time.monotonic())
        (answer,) = await owner.submit([new_command(1)], 60)
        if isinstance(answer, BrokerError):
            raise answer
    return time.process_time() - before_s, began_s


def _answer(method: Callable[..., Any] | None) -> Callable[..., Awaitable[Any]]:
    """A method as links call it: awaited, whether or not the owner's own is. What it has not answers None."""

    async def call(*arguments: object) -> Any:
        found = None if method is None else method(*arguments)
        return await found if inspect.isawaitable(found) else found

    return call


def _say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
