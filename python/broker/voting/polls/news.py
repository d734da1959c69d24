"""Notifies the results channel of new votes, at a rate that is independent of the number of votes."""

from broker.clock import Clock
from broker.concurrency.caches import TtlCache
from broker.owners.client import Owners

_EVERY_S = 0.5
_PROGRAMS = 10_000  # remembered at a time


class VoteNews:
    """Nudges the channel `responses:<program>` at most twice a second a program.

    A call that is dropped loses nothing: the channel looks once a second by itself. The limit is per process.
    """

    def __init__(self, owners: Owners, clock: Clock) -> None:
        self._owners = owners
        self._told: TtlCache[tuple[str, str], bool] = TtlCache(clock, _EVERY_S, _PROGRAMS)

    async def tell(self, account: str, program_id: str) -> None:
        """Something was counted."""
        key = (account, program_id)
        if key in self._told:
            return
        self._told.put(key, True)
        await self._owners.votes_counted(account, program_id)
