"""What happens to three nodes. Each scene ends when the product is whole again."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable

from tests.adversity.faults import TITLES
from tests.adversity.soak import Show
from tests.cluster.stage import Stage, find_on

_DEAD_S = 20.0  # until Ray has given it up too: nothing that was put right before may then go wrong
_CUT_OFF_S = 25.0  # longer than the health checks of `node.env` take
_BAD_S = 20.0
_BETWEEN_S = 5.0  # longer than the list of gateways takes to be read
_DELAY_S = 0.1  # each way
_LOSS = 0.02


async def node_dies(stage: Stage, show: Show) -> None:
    """The power of the last node with an owner goes, and comes back. Not of the head's, which has a scene."""
    host = [each for each in stage.hosts[1:] if find_on(each, TITLES["owner"])][-1]
    host.power_off()
    await show.until_at_work(time.monotonic() + _DEAD_S)
    host.heal()
    await stage.start_node(host)
    await stage.until_joined()
    await stage.until_everywhere(TITLES["gateway"], [host])


async def node_cut_off(stage: Stage, show: Show) -> None:
    """Nothing reaches the second node for longer than Ray waits for it."""
    host = stage.hosts[1]
    host.cut()
    await show.until_at_work(time.monotonic() + 2.0)
    await asyncio.sleep(_CUT_OFF_S)
    host.heal()
    # Its raylet finds that it was given up, and ends; whoever looks after the host starts it again.
    await asyncio.sleep(5.0)
    host.kill()
    await stage.start_node(host)
    await stage.until_joined()
    await stage.until_everywhere(TITLES["gateway"], [host])


async def bad_way(stage: Stage, show: Show) -> None:
    """Between the second and the third node 200 ms there and back, and two packets in a hundred lost."""
    with stage.network.bad_way(stage.hosts[1], stage.hosts[2], _DELAY_S, _LOSS):
        await show.until_at_work(time.monotonic() + _BAD_S)


async def gateways_die(stage: Stage, show: Show) -> None:
    """The gateway of each node is killed, one after the other; with `--relay-from 1` two of three relay."""
    for host in stage.hosts:
        for pid in find_on(host, TITLES["gateway"]):
            os.kill(pid, signal.SIGKILL)
        await show.until_at_work(time.monotonic() + _BETWEEN_S)
        await stage.until_everywhere(TITLES["gateway"], [host])


async def head_dies(stage: Stage, show: Show) -> None:
    """The power of the head goes, with the GCS and `broker up`; it comes back with its disk."""
    host = stage.hosts[0]
    host.kill()
    await stage.start_node(host)
    await stage.start_product()
    await show.until_ready()


async def new_code(stage: Stage, show: Show) -> None:
    """SIGHUP exchanges everything, one after another."""
    stage.instance.process.send_signal(signal.SIGHUP)
    await asyncio.sleep(1.0)
    await show.until_ready()


SCENES: dict[str, Callable[[Stage, Show], Awaitable[None]]] = {
    "node-dies": node_dies,
    "node-cut-off": node_cut_off,
    "bad-way": bad_way,
    "gateways-die": gateways_die,
    "head-dies": head_dies,
    "new-code": new_code,
}
"""By the names that the command line knows."""
