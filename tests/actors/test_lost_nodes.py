"""Which nodes are taken for lost. A socket whose queue is full is as silent as an address without power."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from broker.actors import lost_nodes
from broker.actors.link import ActorPlace, LinkLost
from broker.actors.lost_nodes import list_answering, until_node_lost
from broker.actors.named import Node

pytestmark = pytest.mark.anyio

HOST = "127.0.0.1"


class Link:
    """The way to an actor that answers so many times, and is silent then."""

    place = ActorPlace("owner-0.1", HOST)

    def __init__(self, answers: int = 0) -> None:
        self.asked = 0
        self.is_closed = False
        self._answers = answers

    async def call(self, method: str, *, timeout_s: float) -> int:
        assert method == "process_id"
        self.asked += 1
        if self.asked <= self._answers:
            return 1
        await asyncio.sleep(0)
        raise LinkLost(method) from TimeoutError()

    def close(self) -> None:
        self.is_closed = True


@contextmanager
def silent_port(host: str = HOST) -> Iterator[int]:
    """A port that neither accepts nor refuses: Linux leaves a SYN unanswered when the queue is full."""
    with ExitStack() as stack:
        door = stack.enter_context(socket.create_server((host, 0), backlog=0))
        for _ in range(3):
            caller = stack.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(door.getsockname())
        yield door.getsockname()[1]


@contextmanager
def stopped_port() -> Iterator[int]:
    """A port that the kernel accepts connections at, and nobody takes them."""
    with socket.create_server((HOST, 0)) as door:
        yield door.getsockname()[1]


def refusing_port() -> int:
    with socket.create_server((HOST, 0)) as door:
        port: int = door.getsockname()[1]
    return port


def put(monkeypatch: pytest.MonkeyPatch, link: Link, *nodes: Node) -> None:
    """A link to a slot, and the nodes that Ray tells."""
    monkeypatch.setattr(lost_nodes, "SlotLink", lambda _kind, _index, _calls: link)
    monkeypatch.setattr(lost_nodes, "list_nodes", lambda **_options: list(nodes))
    monkeypatch.setattr(lost_nodes, "_PAUSE_S", 0.001)
    monkeypatch.setattr(lost_nodes, "_TRY_S", 0.01)


async def test_node_is_lost_when_neither_it_nor_the_actor_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    link = Link(answers=2)
    with silent_port() as port:
        put(monkeypatch, link, Node("a", HOST, port))
        async with asyncio.timeout(30):
            assert await until_node_lost("owner", 0) == Link.place
    assert link.asked >= 4
    assert link.is_closed


@pytest.mark.parametrize("kind", ["stopped", "refusing"])
async def test_node_that_answers_is_not_lost_whatever_the_actor_does(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that hangs is left to who looks after processes."""
    link = Link()
    with stopped_port() as stopped:
        port = stopped if kind == "stopped" else refusing_port()
        put(monkeypatch, link, Node("a", HOST, port))
        watching = asyncio.create_task(until_node_lost("owner", 0))
        async with asyncio.timeout(30):
            while link.asked < 20:
                assert not watching.done()
                await asyncio.sleep(0.001)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    assert link.is_closed


async def test_node_that_is_silent_is_not_lost_while_the_actor_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link = Link(answers=50)
    with silent_port() as port:
        put(monkeypatch, link, Node("a", HOST, port))
        async with asyncio.timeout(30):
            assert await until_node_lost("owner", 0) == Link.place
    assert link.asked > 50


async def test_watcher_that_was_held_up_takes_no_node_for_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """All its tries seem late to it, and the answers may lie there."""
    link = Link()
    with silent_port() as port:
        put(monkeypatch, link, Node("a", HOST, port))
        monkeypatch.setattr(lost_nodes, "_HELD_UP_S", -1.0)
        watching = asyncio.create_task(until_node_lost("owner", 0))
        async with asyncio.timeout(30):
            while link.asked < 20:
                assert not watching.done()
                await asyncio.sleep(0.001)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_actors_are_put_on_nodes_that_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with silent_port() as silent, stopped_port() as stopped:
        nodes = [Node("a", HOST, silent), Node("b", HOST, stopped)]
        put(monkeypatch, Link(), *nodes)
        assert await list_answering() == [nodes[1]]
        others = [node._replace(host="127.0.0.2") for node in nodes]
        put(monkeypatch, Link(), *nodes, *others)
        assert await list_answering(HOST) == others, "which refuse"
        put(monkeypatch, Link(), nodes[0])
        assert await list_answering(HOST) == [nodes[0]], "there is no other"
        assert await list_answering() == [nodes[0]], "when none answers it is no node's fault"
