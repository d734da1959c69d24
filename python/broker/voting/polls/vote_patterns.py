"""How votes of watched polls come: counts by minute and by network, and of names that come in rows.

A process counts in memory and adds its counts to those in the database every few seconds, so what it has
counted since is lost when it is killed; the votes themselves are not. Who voted is in none of it. All is
bounded: polls, networks of a poll and stems of names at a time.
"""

import asyncio
import hashlib
import logging
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from broker.clock import Clock
from broker.concurrency.caches import LruCache
from broker.concurrency.tasks import is_set_within, run_once
from broker.errors import Unavailable
from broker.storage.vote_patterns import OTHER_NETWORKS, StoredPatterns

_WRITE_S = 2.0
_MAX_POLLS = 500
_MAX_NETWORKS = 1_000  # of one poll, between two writes
_MAX_STEMS = 5_000
_NEAR = 16  # numbers that are no further apart are of one row: several workers of a script mix their order
_NUMBER = re.compile(r"(\d{1,18})\D*$")
_MINUTE_MS = 60_000

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Tally:
    minutes: Counter[int] = field(default_factory=Counter)
    in_row: Counter[int] = field(default_factory=Counter)
    networks: Counter[int] = field(default_factory=Counter)


class VotePatterns:
    """One for each process. Use from one event loop, and `close` it."""

    def __init__(self, stored: StoredPatterns, clock: Clock) -> None:
        self.stored = stored
        self._clock = clock
        self._tallies: dict[int, _Tally] = {}
        self._last: LruCache[tuple[int, int], int] = LruCache(_MAX_STEMS)
        self._writer: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    def note(self, key: bytes, network: str, votes: Iterable[tuple[int, str]]) -> None:
        """Count votes that changed a count: of which poll, and of whom.

        Args:
            key: of the program; what is kept of a network is a hash under it.
        """
        minute = self._clock.now_ms() // _MINUTE_MS
        hashed = _network(key, network)
        for poll, visitor in votes:
            tally = self._tallies.get(poll)
            if tally is None:
                if len(self._tallies) >= _MAX_POLLS:
                    continue
                tally = self._tallies[poll] = _Tally()
            tally.minutes[minute] += 1
            is_known = hashed in tally.networks or len(tally.networks) < _MAX_NETWORKS
            tally.networks[hashed if is_known else OTHER_NETWORKS] += 1
            if self._is_in_row(poll, visitor):
                tally.in_row[minute] += 1
        if self._tallies and self._writer is None and not self._closing.is_set():
            self._writer = run_once("vote patterns", self._write_until_done())

    async def close(self) -> None:
        """Write what is counted. Idempotent."""
        self._closing.set()
        if self._writer is not None:
            await asyncio.gather(self._writer, return_exceptions=True)

    def _is_in_row(self, poll: int, visitor: str) -> bool:
        """Whether a name counts on from one before; only a hash of its stem is remembered."""
        found = _NUMBER.search(visitor)
        if found is None:
            return False
        number = int(found[1])
        stem = (poll, hash((visitor[: found.start()], visitor[found.end(1) :])))
        before = self._last.get(stem)
        self._last.put(stem, number)
        return before is not None and 0 < abs(number - before) <= _NEAR

    async def _write_until_done(self) -> None:
        try:
            while self._tallies:
                await is_set_within(self._closing, _WRITE_S)
                try:
                    await self.write()
                except Unavailable as error:
                    _log.info("vote_patterns_not_written", extra={"cause": error.log_text or error.message})
                    if self._closing.is_set():
                        return
        finally:
            self._writer = None

    async def write(self) -> None:
        """Add what is counted to what is stored. Raises Unavailable, and then keeps it."""
        tallies, self._tallies = self._tallies, {}
        if not tallies:
            return
        minutes = [
            (poll, minute, votes, tally.in_row[minute])
            for poll, tally in sorted(tallies.items())
            for minute, votes in sorted(tally.minutes.items())
        ]
        networks = [
            (poll, network, votes)
            for poll, tally in sorted(tallies.items())
            for network, votes in sorted(tally.networks.items())
        ]
        try:
            await self.stored.add(minutes, networks)
        except Unavailable:
            self._take_back(tallies)
            raise

    def _take_back(self, tallies: dict[int, _Tally]) -> None:
        for poll, tally in tallies.items():
            now = self._tallies.setdefault(poll, tally)
            if now is not tally:
                now.minutes += tally.minutes
                now.in_row += tally.in_row
                room = max(0, _MAX_NETWORKS - len(now.networks))
                _merge(now.networks, tally.networks, room)


def _merge(into: Counter[int], counts: Counter[int], room: int) -> None:
    for network, votes in counts.most_common():
        if network not in into:
            if room <= 0:
                into[OTHER_NETWORKS] += votes
                continue
            room -= 1
        into[network] += votes


def _network(key: bytes, network: str) -> int:
    digest = hashlib.blake2b(network.encode(), digest_size=8, key=key, person=b"vote network").digest()
    return int.from_bytes(digest, "big", signed=True) or 1
