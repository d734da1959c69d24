"""Whether maintenance is on, as this process knows it: the one place where changes are refused for it.

`invoke` asks before an operation that changes something (`Operation.effect`), and native code takes no votes
meanwhile (`broker.gateway.open_polls`). What has got past that before is finished.

The process is woken by a notification of the database and, since notifications can be lost, looks every
`LOOK_S` anyway. While the database is unavailable, what was known last holds.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator

from broker.concurrency.tasks import cancel_and_wait, is_set_within, keep_running
from broker.domain.maintenance import Maintenance
from broker.errors import BrokerError, UnderMaintenance
from broker.metrics import catalogue
from broker.metrics.counts import Sample
from broker.storage.database import Database
from broker.storage.maintenance import CHANNEL, MaintenanceModes

LOOK_S = 2.9
"""How late, at most, a change is seen whose notification was lost."""

_PAUSE_S = 0.05  # between two looks at the database, however many notifications come

_log = logging.getLogger(__name__)


class KnownMaintenance:
    """Asking costs no query. `start` before use, `close` in the end; belongs to one event loop."""

    def __init__(self, database: Database) -> None:
        self.current: Maintenance | None = None
        self._database = database
        self._modes = MaintenanceModes(database)
        self._news = asyncio.Event()
        self._heard: list[Callable[[], None]] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Read it, and follow it from now on. Raises Unavailable."""
        await self._look()
        self._tasks = [
            keep_running("maintenance", self._follow),
            keep_running("maintenance.listen", self._listen),
        ]

    async def close(self) -> None:
        """Follow it no more. Idempotent."""
        await cancel_and_wait(*self._tasks)
        self._tasks = []

    def require_off(self) -> None:
        """Let a change pass. Raises UnderMaintenance, with the operator's message, while it is on."""
        if self.current is not None:
            raise UnderMaintenance(self.current.message, retry_after_s=self.current.retry_after_s)

    def on_begin(self, heard: Callable[[], None]) -> None:
        """Call `heard` on the event loop whenever it has been switched on, from now on."""
        self._heard.append(heard)

    def figures(self) -> Iterator[Sample]:
        """Whether it is on here."""
        yield Sample(catalogue.MAINTENANCE.name, (), int(self.current is not None))

    async def _listen(self) -> None:
        await self._database.listen(CHANNEL, lambda _payload: self._news.set())

    async def _follow(self) -> None:
        while True:
            await is_set_within(self._news, LOOK_S)
            self._news.clear()
            try:
                await self._look()
            except BrokerError as error:
                _log.warning("maintenance_not_read", extra={"cause": error.log_text or error.message})
            await asyncio.sleep(_PAUSE_S)

    async def _look(self) -> None:
        before, self.current = self.current, await self._modes.find()
        if (before is None) != (self.current is None):
            _log.warning("maintenance_on" if self.current else "maintenance_off")
        if before is None and self.current is not None:
            for heard in self._heard:
                heard()
