"""When the result of a poll is final, so that nothing is counted in it any more.

A vote that was accepted just before its poll closed is committed a little later, after a fault even seconds
later; a result that was read meanwhile and kept by caches as final would be wrong for as long as they keep
it. So a poll is *sealed* before its result is called final. Sealing waits for commits that are under way, and
later ones are refused: 409 to voters who have not been answered yet, which is not before a vote has had all
the time that votes have. Who reads a result seals; what nobody reads needs none.

A change of the event may open a sealed poll again; the first vote that then comes does it.
"""

from collections.abc import Collection

import orjson

from broker.clock import Clock
from broker.settings import Settings
from broker.storage.polls import Polls
from broker.voting.rules import Declaration, parse_declaration

_GRACE_S = 2.0  # on top of the time that counting a vote may take: for its way, and for what doors remember


class FinalResults:
    """Seals polls. Every method raises `Unavailable` while the database is unavailable."""

    def __init__(self, polls: Polls, clock: Clock, settings: Settings) -> None:
        self._polls = polls
        self._clock = clock
        self._grace_ms = round((settings.publish_timeout_s + _GRACE_S) * 1_000)

    def has_ended(self, declared: Declaration) -> bool:
        """Whether it closed so long ago that no vote for it is under way, unless something hangs."""
        return declared.is_closed(self._clock.now_ms() - self._grace_ms)

    async def seal(self, polls: Collection[int]) -> set[int]:
        """Seal those that have ended, and open the others.

        Returns:
            Those that are sealed now; what is counted in them is committed.
        """
        return await self._polls.seal(sorted(polls), self._has_ended)

    def _has_ended(self, metadata: bytes) -> bool:
        return self.has_ended(parse_declaration(orjson.loads(metadata)))
