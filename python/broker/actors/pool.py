"""A pool of slots of one kind: named Ray actors, one per slot, spread over the nodes.

Actors are found by name, and Ray restarts them without limit. Ray itself never retries a call: whether a
repetition is safe is for us to decide.

No name is used twice: Ray caches in each process which actor a name means, so a process that looked up a
reused name could get the dead actor.

To exchange an actor, its successor is started first: an actor of the same slot with the next number in its
name. Then the old one finishes its work and ends, and its callers find the newest actor of the slot. Should
two run for a moment, the fence lets only one of them write. An actor that hangs is exchanged automatically,
because Ray watches processes and nodes, but not whether an actor responds. So is one whose node is gone, long
before Ray finds out (`lost_nodes`); its end is not waited for, and its successor goes to a node that answers.
On a cluster so is one whose node is about to leave, while there is another node.
"""

import asyncio
import itertools
import logging
import secrets
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from broker.actors.actor import SlotActor
from broker.actors.liveness import watch_slot
from broker.actors.lost_nodes import list_answering, until_node_lost
from broker.actors.named import (
    NAMESPACE,
    find_actor,
    find_newest,
    kill,
    list_names,
    list_slot_names,
    live_nodes,
    number_of,
)
from broker.actors.placement import node_of, slot_name
from broker.concurrency.periodic import repeat
from broker.concurrency.tasks import cancel_and_wait, keep_running
from broker.errors import BrokerError, Unavailable
from broker.metrics.counts import SLOT_EXCHANGES
from broker.settings import Settings

_START_S = 60.0  # a cold actor process takes seconds on a busy machine
_STOP_S = 5.0
_RETRY_S = 0.2
_CPUS = 0.01  # a claim, not a limit: Ray places what claims nothing anywhere
_CONCURRENCY = 10_000  # calls at once of one actor, as a poll of an owner for each gateway
_LOOK_S = 4.0  # between two looks at an actor by way of Ray
_WATCHED_LOOK_S = 12.0  # the same where its process is watched over on this machine
_HUNG_S = 10.0  # without a reply; nothing that a part does keeps its loop for so long

_log = logging.getLogger(__name__)


class SlotPool:
    """All slots of one kind. `start`, then `watch` in a task; `exchange` and `stop` at any time."""

    def __init__(
        self,
        kind: str,
        actor: type[SlotActor[Any]],
        slots: int,
        settings: Settings,
        dsn: str,
        *,
        detached: bool,
        first_node: int = 0,
        list_leaving: Callable[[], Collection[str]] = tuple,
        term: int | None = None,
    ) -> None:
        """Nothing is started yet.

        Args:
            kind: what the slots are named for.
            actor: what is made for each slot, with the settings, the dsn, the slot's index and `term`.
            slots: how many there are.
            detached: actors outlive this process; otherwise they end with it or with `stop`.
            term: of the conductor that has this pool; see `SlotActor`.
            first_node: the place of slot 0 in the round of the nodes, so that kinds can differ in it.
            list_leaving: gives the ids of the nodes that are about to leave the cluster; it may block.
        """
        self._kind = kind
        self._actor = actor
        self._settings = settings
        self._dsn = dsn
        self._detached = detached
        self._first_node = first_node
        self._list_leaving = list_leaving
        self._term = term
        self._locks = [asyncio.Lock() for _ in range(slots)]  # one change of a slot at a time
        self._watching: list[list[asyncio.Task[None]]] | None = None  # by slot, while `watch` runs
        self._held: dict[int, Any] = {}  # an actor that is not detached ends with its last handle

    async def start(self) -> None:
        """Start an actor for each slot; those that an earlier process left are exchanged.

        Raises:
            Unavailable: one does not start in time, or cannot reach the database.
        """
        number = await self._next_number()
        await asyncio.gather(*(self._renew(index, number) for index in range(len(self._locks))))

    def use(self, settings: Settings) -> None:
        """Give these settings to the actors that are started from now on."""
        self._settings = settings

    async def exchange(self) -> None:
        """Exchange every actor for a new one, one after the other. Raises Unavailable."""
        number = await self._next_number()
        for index in range(len(self._locks)):
            await self._renew(index, number)

    async def watch(self) -> None:
        """Exchange actors that hang, have ended for good, or are on a lost node, until cancelled."""
        watching = self._watching = [self._begin_watch(index) for index in range(len(self._locks))]
        try:
            await asyncio.Event().wait()
        finally:
            self._watching = None
            await cancel_and_wait(*itertools.chain.from_iterable(watching))

    @property
    def slots(self) -> int:
        """How many slots there are."""
        return len(self._locks)

    async def grow(self, slots: int) -> None:
        """Have so many slots, with an actor for each. Raises Unavailable; there are no more slots then."""
        first = len(self._locks)
        self._locks += [asyncio.Lock() for _ in range(first, slots)]
        number = await self._next_number()
        try:
            await asyncio.gather(*(self._renew(index, number) for index in range(first, slots)))
        except BaseException:
            await self.shrink(first)
            raise
        if self._watching is not None:
            self._watching += [self._begin_watch(index) for index in range(first, slots)]

    async def shrink(self, slots: int) -> None:
        """Have no more than so many slots. End the actors of the others, and those that are left of any."""
        if self._watching is not None:
            ended = self._watching[slots:]
            del self._watching[slots:]
            await cancel_and_wait(*itertools.chain.from_iterable(ended))
        del self._locks[slots:]
        kept = {self._name(index) for index in range(slots)}
        names = await asyncio.to_thread(list_names, f"{self._kind}-")
        await asyncio.gather(*(_end(name) for name in names if name.partition(".")[0] not in kept))
        for index in [index for index in self._held if index >= slots]:
            del self._held[index]

    async def stop(self) -> None:
        """End the actors; what they do not store in time is answered `Unavailable`. Idempotent."""
        await asyncio.gather(*(_end(name) for name in await self._names()))
        self._held.clear()

    async def _next_number(self) -> int:
        """A number that no actor has: actors of one number are spread over the nodes."""
        return 1 + max(map(number_of, await self._names()), default=0)

    async def _names(self) -> list[str]:
        """The names of all actors that the slots have."""
        slots = {self._name(index) for index in range(len(self._locks))}
        names = await asyncio.to_thread(list_names, self._kind)
        return [name for name in names if name.partition(".")[0] in slots]

    async def _renew(self, index: int, number: int) -> None:
        async with self._locks[index]:
            await self._succeed(index, number)

    async def _succeed(self, index: int, least: int = 1, *, lost: str = "") -> None:
        """Put a new actor into a slot, with the next number or `least`, in the place of those that it has.

        Args:
            lost: the address of a node that is gone with them, so that they cannot end by themselves.
        """
        slot = self._name(index)
        old, nodes, leaving = await asyncio.gather(
            asyncio.to_thread(list_slot_names, slot),
            list_answering(lost),
            asyncio.to_thread(self._list_leaving),
        )
        number = max(least, 1 + max(map(number_of, old), default=0))
        staying = [node.id for node in nodes if node.id not in leaving] or [node.id for node in nodes]
        handle = await asyncio.to_thread(self._create, index, number, staying)
        if lost:
            # Killed at once, else Ray would start them again elsewhere when it learns of the node.
            await asyncio.gather(self._settle(index, handle, []), *map(_kill, old))
        else:
            await self._settle(index, handle, old)

    async def _settle(self, index: int, handle: Any, old: Sequence[str]) -> None:
        """Have a new actor take the slot when it runs and these have ended. Raises Unavailable."""
        slot = self._name(index)
        try:
            async with asyncio.timeout(_START_S):
                await handle.process_id.remote()  # it runs, and takes the slot when it is asked for more
        except BaseException as error:
            await asyncio.to_thread(kill, handle)
            if not isinstance(error, TimeoutError | RayError):
                raise
            text = f"{slot} did not start"
            raise Unavailable(text, retry_after_s=1, log_text=repr(error)) from error
        # Ray would end the former one with its handle: it would not be asked to stop, and its callers wait.
        former = self._held.get(index)
        self._held[index] = handle
        await asyncio.gather(*(_end(name) for name in old))
        del former
        await _await_slot(handle, slot)

    def _begin_watch(self, index: int) -> list[asyncio.Task[None]]:
        # The process of an actor that is not detached is on this machine.
        guard = self._leave_lost_nodes if self._detached else self._watch_slot
        return [
            keep_running("slot", lambda: self._watch(index)),
            keep_running("slot guard", lambda: guard(index)),
        ]

    async def _watch(self, index: int) -> None:
        SLOT_EXCHANGES.add(self._name(index), amount=0)  # so that the first one is an increase
        look_s = _LOOK_S if self._detached else _WATCHED_LOOK_S
        await repeat("slots", look_s, lambda: self._look_at(index))

    async def _watch_slot(self, index: int) -> None:
        await watch_slot(self._kind, index)

    async def _leave_lost_nodes(self, index: int) -> None:
        while True:
            place = await until_node_lost(self._kind, index)
            await self._replace(index, place.actor, f"no reply from its node {place.host}", lost=place.host)

    async def _look_at(self, index: int) -> None:
        if self._locks[index].locked():
            return  # it is being exchanged
        name, fault = await self._find_fault(index)
        if fault:
            await self._replace(index, name, fault)

    async def _replace(self, index: int, name: str | None, fault: str, *, lost: str = "") -> None:
        """Exchange the actor of a slot, unless the slot has another one meanwhile."""
        async with self._locks[index]:
            if await asyncio.to_thread(find_newest, self._kind, index) != name:
                return
            SLOT_EXCHANGES.add(self._name(index))
            _log.warning("slot_exchanged", extra={"slot": self._name(index), "cause": fault})
            try:
                await self._succeed(index, lost=lost)
            except (Unavailable, RayError) as error:
                _log.error("slot_not_exchanged", extra={"slot": self._name(index), "cause": repr(error)})

    async def _find_fault(self, index: int) -> tuple[str | None, str]:
        """The slot's newest actor, and why the slot needs another; empty when it has one.

        It is empty too when Ray is about to restart the actor.
        """
        name: str | None = None
        try:
            async with asyncio.timeout(_HUNG_S):
                name = await asyncio.to_thread(find_newest, self._kind, index)
                actor: Any = None if name is None else await asyncio.to_thread(find_actor, name)
                if actor is None:
                    return name, "it does not run"
                await actor.process_id.remote()
                return name, "its node leaves" if await self._is_leaving(actor) else ""
        except TimeoutError:
            return name, f"no reply within {_HUNG_S:g} s"
        except ActorDiedError:
            return name, "it does not run"
        except RayError:
            return name, ""

    async def _is_leaving(self, actor: Any) -> bool:
        """Whether the actor's node is about to leave, and another one stays. Raises RayError."""
        leaving = await asyncio.to_thread(self._list_leaving)
        if not leaving or await actor.node_id.remote() not in leaving:
            return False
        return bool(set(await asyncio.to_thread(live_nodes)) - set(leaving))

    def _name(self, index: int) -> str:
        return slot_name(self._kind, index)

    def _create(self, index: int, number: int, nodes: Sequence[str]) -> Any:
        options: dict[str, Any] = {"lifetime": "detached"} if self._detached else {}
        # Ray's own SPREAD goes round over all actors, gateways too. Soft, so that slots outlive their node.
        # A successor prefers the next node, in case the present one is what hangs.
        node = node_of(self._first_node + index + number - 1, nodes)
        actor = ray.remote(self._actor).options(
            name=f"{self._name(index)}.{number}.{secrets.token_hex(4)}",
            namespace=NAMESPACE,
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=_CONCURRENCY,
            num_cpus=_CPUS,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=True),
            **options,
        )
        return actor.remote(self._settings, self._dsn, index, self._term)


async def _await_slot(handle: Any, slot: str) -> None:
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
        raise Unavailable(f"{slot} did not start", retry_after_s=1, log_text=text) from reason


async def _end(name: str) -> None:
    """Let an actor finish what it has, then end it for good; one that does not answer is killed."""
    handle = await asyncio.to_thread(find_actor, name)
    if handle is None:
        return
    with suppress(TimeoutError, RayError):
        async with asyncio.timeout(_STOP_S):
            await handle.stop.remote()
    await asyncio.to_thread(kill, handle)


async def _kill(name: str) -> None:
    handle = await asyncio.to_thread(find_actor, name)
    if handle is not None:
        await asyncio.to_thread(kill, handle)
