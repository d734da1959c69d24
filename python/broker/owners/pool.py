"""The pool of owners: named Ray actors, one a slot, spread over the nodes.

They are found by name, and restarted by Ray for ever. A call is never retried by Ray itself: whether a
repeated call is harmless is our business.
"""

import asyncio
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from broker.errors import BrokerError, Unavailable
from broker.owners.actor import OwnerActor
from broker.owners.placement import node_of, slot_name
from broker.settings import Settings

NAMESPACE = "broker"
_START_S = 60.0  # a cold actor process takes seconds on a busy machine
_STOP_S = 3.0
_RETRY_S = 0.2
_CPUS = 0.01  # a claim, not a limit: Ray places what claims nothing anywhere
_CONCURRENCY = 10_000  # calls at once of one owner: a poll for each gateway, and what is published

_held: dict[str, Any] = {}
"""Handles of owners that are not detached: such an actor ends with its last handle."""


async def start_owners(settings: Settings, dsn: str, *, detached: bool) -> None:
    """Start the owners that do not run yet and wait until each has its slot.

    Args:
        detached: they outlive this process; otherwise they end with it or with `stop_owners`.

    Raises:
        Unavailable: an owner does not start in time, or cannot reach the database.
    """
    await asyncio.gather(*(_start(settings, dsn, index, detached) for index in range(settings.owners)))


async def stop_owners(settings: Settings) -> None:
    """End the owners; what they have not answered is answered `Unavailable`. Idempotent."""
    await asyncio.gather(*(_stop(index) for index in range(settings.owners)))


async def replace_owner(index: int) -> None:
    """Restart one owner; publishes and polls are retried meanwhile by who sent them."""
    handle = await asyncio.to_thread(find_owner, index)
    try:
        await handle.restart.remote()
    except RayError:
        return  # the call ends with the process that it ends


def find_owner(index: int) -> "ActorHandle[OwnerActor]":
    """The handle of an owner. Blocks for a round trip to Ray. Raises ValueError when it does not run."""
    return ray.get_actor(slot_name(index), namespace=NAMESPACE)


async def _start(settings: Settings, dsn: str, index: int, detached: bool) -> None:
    handle = await asyncio.to_thread(_create, settings, dsn, index, detached)
    if not detached:
        _held[slot_name(index)] = handle
    error: BrokerError | None = None
    try:
        async with asyncio.timeout(_START_S):
            while True:
                error = await handle.ready.remote()
                if error is None:
                    return
                await asyncio.sleep(_RETRY_S)
    except (TimeoutError, RayError) as reason:
        text = repr(reason) if error is None else error.log_text
        raise Unavailable(f"{slot_name(index)} does not start", retry_after_s=1, log_text=text) from reason


def _create(settings: Settings, dsn: str, index: int, detached: bool) -> Any:
    options: dict[str, Any] = {"lifetime": "detached"} if detached else {}
    actor = ray.remote(OwnerActor).options(
        name=slot_name(index),
        namespace=NAMESPACE,
        get_if_exists=True,
        max_restarts=-1,
        max_task_retries=0,
        max_concurrency=_CONCURRENCY,
        num_cpus=_CPUS,
        # Ray's own SPREAD goes round over all actors, gateways too; soft, so that owners outlive their node.
        scheduling_strategy=NodeAffinitySchedulingStrategy(node_of(index, _live_nodes()), soft=True),
        **options,
    )
    return actor.remote(settings, dsn, index)


def _live_nodes() -> list[str]:
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]  # Ray leaves it without types
    return [node["NodeID"] for node in nodes if node["Alive"]]


async def _stop(index: int) -> None:
    _held.pop(slot_name(index), None)
    try:
        handle = await asyncio.to_thread(find_owner, index)
    except ValueError:
        return
    try:
        async with asyncio.timeout(_STOP_S):
            await handle.stop.remote()
    except (TimeoutError, RayError):
        pass  # it is killed all the same
    await asyncio.to_thread(ray.kill, handle, no_restart=True)
