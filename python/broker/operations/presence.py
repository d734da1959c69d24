"""Which producers are online: pings and publishes are recorded, at a low rate."""

import logging

from broker.clock import Clock
from broker.concurrency.caches import TtlCache
from broker.domain.permissions import PUBLISHERS
from broker.domain.users import Principal
from broker.errors import BrokerError
from broker.storage.statistics import Statistics

NOTED_EVERY_S = 20.0  # well below the two minutes after which silence counts as gone
_REMEMBERED = 10_000

_log = logging.getLogger(__name__)


class Presence:
    """Notes producers in the database, each at most every 20 seconds a process."""

    def __init__(self, statistics: Statistics, clock: Clock, *, is_on: bool = True) -> None:
        self._statistics = statistics
        self._clock = clock
        self._is_on = is_on
        self._noted: TtlCache[tuple[str, str], bool] = TtlCache(clock, NOTED_EVERY_S, _REMEMBERED)

    async def note(self, principal: Principal) -> None:
        """Note the caller if it may publish. Raises nothing: the call it came with goes on regardless."""
        if not self._is_on or principal.role not in PUBLISHERS or principal.subject is None:
            return
        key = (principal.account, principal.subject)
        if key in self._noted:
            return
        self._noted.put(key, True)
        try:
            await self._statistics.see_producer(*key, self._clock.now_ms())
        except BrokerError as error:
            self._noted.pop(key)
            _log.info("producer_not_noted", extra={"cause": error.message})
