"""Finds out that a node is gone: its power is off, or it is cut off. Ray takes ten seconds and more for that.

The kernel of a node accepts connections to its raylet's port, or refuses them, however busy its processes are
and even while they are stopped. So a node from which no answer at all comes to several tries is not busy. The
tries overlap: the answer to the first one may take as long as all of them together, and a lost packet costs
one of them. A try during which the watcher was itself held up says nothing and does not count.

A node that is thought gone but is only out of reach costs an exchange, no more: the fence lets one actor of a
slot write, whatever is thought of the other.
"""

import asyncio
import socket

from ray.exceptions import RayError

from broker.actors.link import ActorPlace, LinkLost, SlotLink
from broker.actors.named import Node, list_nodes
from broker.concurrency.tasks import cancel_and_wait
from broker.rpc.calls import SLOT_CALLS

_PAUSE_S = 0.25  # between two questions to an actor
_ANSWER_S = 0.25
_FIRST_S = 5.0  # for the first answer, with the way to the actor
_TRIES = 4  # that count
_MOST_TRIES = 12
_TRY_S = 0.25  # between the beginnings of two tries
_HELD_UP_S = 0.25  # that a try may take longer than it should, unless the watcher itself stood still
_SEARCH_S = 0.3  # for an answer of a node before an actor is put there


async def until_node_lost(kind: str, index: int) -> ActorPlace:
    """Return the place of a slot's actor when the actor and its node have become silent.

    Safe to cancel. What it does not know is an actor that was silent before it was called.
    """
    link = SlotLink(kind, index, SLOT_CALLS)
    try:
        while True:
            if await _is_silent(link, _ANSWER_S if link.place else _FIRST_S) and (place := link.place):
                tries = _is_lost(place.host), _is_silent(link, _TRIES * _TRY_S)
                if all(await asyncio.gather(*tries)) and link.place == place:
                    return place
            await asyncio.sleep(_PAUSE_S)
    finally:
        link.close()


async def list_answering(lost: str = "") -> list[Node]:
    """The nodes that take work and accept connections now; all when none does. Raises RayError.

    Args:
        lost: the address of one that is known not to answer.
    """
    nodes = await asyncio.to_thread(list_nodes)
    left = [node for node in nodes if node.host != lost] or nodes
    answers = await asyncio.gather(*(_answers_within(node, _SEARCH_S) for node in left))
    return [node for node, answer in zip(left, answers, strict=True) if answer] or left


async def _is_silent(link: SlotLink, wait_s: float) -> bool:
    """Whether no answer comes from the actor. One that has ended, or that Ray replaces, is not silent."""
    try:
        await link.call("process_id", timeout_s=wait_s)
    except LinkLost as lost:
        return isinstance(lost.__cause__, TimeoutError)
    return False


async def _is_lost(host: str) -> bool:
    try:
        nodes = await asyncio.to_thread(list_nodes, takes_work=False)
    except (RayError, OSError):
        return False
    node = next((node for node in nodes if node.host == host), None)
    if node is None:
        return False  # Ray knows that it is gone
    clock = asyncio.get_running_loop().time
    tries: set[asyncio.Future[bool]] = set()
    counted = 0
    try:
        for _ in range(_MOST_TRIES):
            began_s = clock()
            tries.add(asyncio.ensure_future(_until_answered(node)))
            done, tries = await asyncio.wait(tries, timeout=_TRY_S, return_when=asyncio.FIRST_COMPLETED)
            if done:
                return False
            counted += clock() - began_s <= _TRY_S + _HELD_UP_S
            if counted == _TRIES:
                return True
        return False
    finally:
        await cancel_and_wait(*tries)


async def _answers_within(node: Node, wait_s: float) -> bool:
    try:
        async with asyncio.timeout(wait_s):
            return await _until_answered(node)
    except TimeoutError:
        return False


async def _until_answered(node: Node) -> bool:
    """Return when the kernel of a node has answered: whether it accepts connections to the raylet."""
    family = socket.AF_INET6 if ":" in node.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            await asyncio.get_running_loop().sock_connect(probe, (node.host, node.port))
        except ConnectionError:
            return False
        except OSError:  # no route to it: what is on the way says so, not the node
            await asyncio.Event().wait()
        return True
