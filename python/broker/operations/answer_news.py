"""Telling that a program's answers have news, seldom enough that a storm of votes is no storm of calls."""

from collections import OrderedDict

from broker.clock import Clock
from broker.owners.client import Owners

_EVERY_S = 0.5
_PROGRAMS = 10_000  # remembered at a time


class AnswerNews:
    """Nudges the channel `responses:<program>` at most twice a second a program.

    What is swallowed is no loss: the channel looks once a second by itself.
    """

    def __init__(self, owners: Owners, clock: Clock) -> None:
        self._owners = owners
        self._clock = clock
        self._told_s: OrderedDict[tuple[str, str], float] = OrderedDict()

    async def tell(self, account: str, program_id: str) -> None:
        """Something was counted."""
        key, now_s = (account, program_id), self._clock.monotonic_s()
        if now_s - self._told_s.get(key, now_s - _EVERY_S) < _EVERY_S:
            return
        self._told_s[key] = now_s
        self._told_s.move_to_end(key)
        if len(self._told_s) > _PROGRAMS:
            self._told_s.popitem(last=False)
        await self._owners.answers_counted(account, program_id)
