import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayError

from broker.concurrency.back_off import Backoff
from broker.deployments import gateways
from broker.deployments.gateways import GatewayKeeper, _Running
from broker.settings import Settings

pytestmark = pytest.mark.anyio

WAIT_S = 20
NODE = "a" * 12
DEAD_NODE = "b" * 12


class Actor:
    """What a reconciler sees of a gateway's process: its calls, and the order in which they come."""

    def __init__(self, name: str, told: list[str]) -> None:
        self.fault = ""
        self._name, self._told = name, told
        self._stopped = asyncio.Event()

    def __getattr__(self, method: str) -> Any:
        call: Callable[..., Awaitable[object]] = getattr(self, f"_{method}")
        return SimpleNamespace(remote=lambda *arguments: asyncio.ensure_future(call(*arguments)))

    async def _run(self) -> None:
        await self._stopped.wait()

    async def _find_fault(self) -> str:
        return self.fault

    async def _drain(self, _over_s: float) -> None:
        self._told.append(f"drain {self._name}")

    async def _stop(self) -> None:
        self._told.append(f"stop {self._name}")
        self._stopped.set()


class OneNode(GatewayKeeper):
    """Starts stand-ins for processes."""

    def __init__(self, settings: Settings, told: list[str]) -> None:
        super().__init__(settings, "postgresql://", outlive_driver=False)
        self.actors: list[Actor] = []
        self.failures = 0
        self._told = told

    async def _start_on(self, node: str) -> None:
        if self.failures:
            self.failures -= 1
            raise RayError("PostgreSQL: connection refused")
        name = str(len(self.actors))
        self._told.append(f"start {name}")
        self.actors.append(Actor(name, self._told))
        self._running[node] = _Running(name, node, self.actors[-1])


async def test_gateway_with_a_dead_loop_is_exchanged_without_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(gateways, "live_nodes", lambda: [NODE])
    monkeypatch.setattr(gateways, "list_draining", set)
    monkeypatch.setattr(gateways, "kill", lambda actor: told.append(f"kill {actor._name}"))
    monkeypatch.setattr(gateways, "_LOOK_S", 0.01)
    kept = OneNode(Settings(), told)
    await kept._reconcile()
    running = asyncio.create_task(kept.run())
    kept.actors[0].fault = "event loops that have died: 1"
    async with asyncio.timeout(WAIT_S):
        while "kill 0" not in told:  # noqa: ASYNC110 - the reconciler tells nobody
            await asyncio.sleep(0.01)
    running.cancel()
    assert told == ["start 0", "start 1", "drain 0", "stop 0", "kill 0"]
    assert kept.count == 1
    await kept.drain(0)
    assert told[5:] == ["drain 1", "stop 1", "kill 1"]


async def test_the_only_gateway_is_started_again_after_a_start_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when the database is away while the gateway dies."""
    told: list[str] = []
    monkeypatch.setattr(gateways, "live_nodes", lambda: [NODE])
    monkeypatch.setattr(gateways, "list_draining", set)
    monkeypatch.setattr(gateways, "kill", lambda actor: told.append(f"kill {actor._name}"))
    monkeypatch.setattr(gateways, "_RETRY", Backoff(0.01, 0.01))
    kept = OneNode(Settings(), told)
    await kept._reconcile()
    kept.failures = 2
    running = asyncio.create_task(kept.run())
    await kept.actors[0]._stop()
    async with asyncio.timeout(WAIT_S):
        while kept.count == 0 or kept.failures:  # noqa: ASYNC110 - the reconciler tells nobody
            await asyncio.sleep(0.01)
    assert not running.done()
    running.cancel()
    assert told == ["start 0", "stop 0", "kill 0", "start 1"]


class SlowNode(OneNode):
    """Starts its first gateway when it is told to."""

    def __init__(self, told: list[str]) -> None:
        super().__init__(Settings(), told)
        self.begun, self.may_start = asyncio.Event(), asyncio.Event()

    async def _start_on(self, node: str) -> None:
        self.begun.set()
        await self.may_start.wait()
        await super()._start_on(node)


async def test_a_gateway_that_is_about_to_start_is_exchanged_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the settings from before, and a node that came back has the one that was started meanwhile."""
    told: list[str] = []
    monkeypatch.setattr(gateways, "live_nodes", lambda: [NODE])
    monkeypatch.setattr(gateways, "list_draining", set)
    monkeypatch.setattr(gateways, "kill", lambda actor: told.append(f"kill {actor._name}"))
    kept = SlowNode(told)
    running = asyncio.create_task(kept.run())
    async with asyncio.timeout(WAIT_S):
        await kept.begun.wait()
        rolling = asyncio.create_task(kept.roll())
        kept.may_start.set()
        await rolling
    running.cancel()
    assert told == ["start 0", "start 1", "drain 0", "stop 0", "kill 0"]


async def test_a_node_that_drains_has_its_gateway_drained_and_gets_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    leaving: set[str] = set()
    monkeypatch.setattr(gateways, "live_nodes", lambda: [NODE])
    monkeypatch.setattr(gateways, "list_draining", lambda: leaving)
    monkeypatch.setattr(gateways, "kill", lambda actor: told.append(f"kill {actor._name}"))
    kept = OneNode(Settings(), told)
    await kept._reconcile()
    leaving.add(NODE)
    await kept._reconcile()
    await kept._reconcile()
    await asyncio.gather(*kept._retiring)
    assert told == ["start 0", "drain 0", "stop 0", "kill 0"]
    assert kept.count == 0


class OneDeadNode(OneNode):
    """Nothing starts on a node that has died."""

    async def _start_on(self, node: str) -> None:
        if node == DEAD_NODE:
            await asyncio.Event().wait()
        await super()._start_on(node)


async def test_a_start_does_not_wait_for_a_node_that_has_died(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GCS that comes back with its tables says for a while that such a node lives."""
    told: list[str] = []
    alive = [[NODE, DEAD_NODE], [NODE, DEAD_NODE], [NODE]]
    monkeypatch.setattr(gateways, "live_nodes", lambda: alive.pop(0) if len(alive) > 1 else alive[0])
    monkeypatch.setattr(gateways, "list_draining", set)
    monkeypatch.setattr(gateways, "_list_left", list)
    monkeypatch.setattr(gateways, "_LOOK_S", 0.01)
    kept = OneDeadNode(Settings(), told)
    async with asyncio.timeout(WAIT_S):
        await kept.start()
    assert told == ["start 0"]
    assert kept.count == 1
