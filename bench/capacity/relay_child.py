"""Relays alone, which follow an owner and are followed over links as in the product.

    python -m bench.capacity.relay_child COUNT HOST PORT SECRET

Prints where each of them listens, and then for each line of its input the CPU seconds that its process has
taken so far.
"""

import json
import sys
import time

import uvloop

from bench.capacity.direct import Direct
from bench.servers.command import read_lines
from broker.clock import SystemClock
from broker.ids import IdSource
from broker.owners.calls import OWNER_CALLS, SESSION_CALLS, SessionCalls
from broker.owners.relay import Relay
from broker.rpc.listener import Listener
from broker.rpc.wire import Address
from broker.settings import Settings


async def main(count: int, owner: Address) -> None:
    """Serve until the input ends."""
    clock = SystemClock()
    relays = [
        Relay(Settings(), clock, IdSource(clock), [await Direct.open(owner, OWNER_CALLS)])
        for _ in range(count)
    ]
    listeners: list[Listener[SessionCalls]] = [Listener(owner.host, SESSION_CALLS, each) for each in relays]
    addresses = [await each.address() for each in listeners]
    _say([(address.host, address.port, address.secret.hex()) for address in addresses])
    async for _ in read_lines():
        _say({"cpu_s": time.process_time()})
    for listener in listeners:
        await listener.close()
    for relay in relays:
        await relay.close()


def _say(told: object) -> None:
    print(json.dumps({"relays": told} if isinstance(told, list) else told), flush=True)


if __name__ == "__main__":
    given_count, host, port, secret = sys.argv[1:]
    uvloop.run(main(int(given_count), Address(host, int(port), bytes.fromhex(secret))))
