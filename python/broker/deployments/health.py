"""The checks of `/readyz` and `getHealth`: whether each required part responds."""

import asyncio
from collections.abc import Awaitable, Collection, Mapping

from broker.actors.link import Link, LinkLost, SlotLinks
from broker.actors.placement import slot_name
from broker.concurrency.tasks import failing
from broker.deployments.disk_room import require_room
from broker.errors import BrokerError, Unavailable
from broker.owners.known_placement import KnownPlacement
from broker.owners.placement import OWNER
from broker.rpc.calls import SLOT_CALLS
from broker.settings import Settings
from broker.storage.database import Database
from broker.storage.gateways import Gateways
from broker.voting.counting.placement import COUNTER

_CHECK_S = 2.0


class HealthChecks:
    """Asks all parts at once; each has two seconds."""

    def __init__(self, settings: Settings, database: Database, placement: KnownPlacement) -> None:
        self._settings = settings
        self._database = database
        self._placement = placement
        self._gateways = Gateways(database)
        self._links = {kind: SlotLinks(kind, SLOT_CALLS) for kind in (OWNER, COUNTER)}

    async def check(self) -> Mapping[str, str]:
        """`ok`, or what is wrong, for each part; `tasks` are those of this process."""
        checks = {
            "database": self._answering_database(),
            "owners": self._slots(OWNER, self._placement.current.owners),
            "counters": self._slots(COUNTER, self._settings.counters),
            "gateways": self._live_gateways(),
            "tasks": self._tasks(),
        }
        states = await asyncio.gather(*(_state(check) for check in checks.values()))
        return dict(zip(checks, states, strict=True))

    def close(self) -> None:
        """Leave the owners and counters."""
        for links in self._links.values():
            links.close()

    async def _answering_database(self) -> None:
        async with self._database.connection() as connection:
            await connection.execute("SELECT 1")
        # Reading goes on when nothing can be written any more.
        await asyncio.to_thread(require_room, self._settings)

    async def _slots(self, kind: str, slots: int) -> None:
        """Each of a kind answers, and says that it has its slot."""
        links = self._links[kind]
        await asyncio.gather(*(_require(slot_name(kind, index), links[index]) for index in range(slots)))

    async def _live_gateways(self) -> None:
        gateways = await self._gateways.list_alive()
        if not any(not gateway.draining for gateway in gateways):
            raise Unavailable("no gateway takes connections")
        _require_running({name for gateway in gateways for name in gateway.failing})

    async def _tasks(self) -> None:
        _require_running(failing())


def _require_running(names: Collection[str]) -> None:
    if names:
        raise Unavailable(f"{', '.join(sorted(names))}: fails repeatedly")


async def _require(slot: str, link: Link) -> None:
    try:
        error = await link.call("ready", timeout_s=_CHECK_S)
    except LinkLost:
        raise Unavailable(f"{slot} does not answer") from None
    if error is not None:
        raise Unavailable(f"{slot}: {error.message}")


async def _state(check: Awaitable[None]) -> str:
    try:
        await asyncio.wait_for(check, _CHECK_S)
    except BrokerError as error:
        return error.message
    except TimeoutError:
        return f"does not answer within {_CHECK_S:g} s"
    return "ok"
