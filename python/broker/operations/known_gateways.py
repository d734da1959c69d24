"""The gateways for `/connect`: cached in the process, and chosen to balance load.

They are read at most once a second, by whoever asks first; everybody else is answered from memory, also while
that is under way and while the database is unavailable. Gateways say how many connections they have every few
seconds. Between two such times what this process has sent to a gateway counts as if it had arrived, so the
one that had the fewest does not get everybody.

Who names no program is sent by chance, weighted by load: a gateway with none gets three times what one gets
that has the mean of all. Viewers of a program meet at few gateways, so that few follow it: each program has
an order of all gateways by rendezvous hashing, and a viewer goes to the first one whose load is within a
quarter above the mean (consistent hashing with bounded loads, Mirrokni, Thorup and Zadimoghaddam 2018).
"""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b

from broker.clock import Clock
from broker.concurrency.single_flight import SingleFlight
from broker.errors import Unavailable
from broker.storage.gateways import GatewayRow, Gateways

_FRESH_S = 1.0
_KEPT_S = 30.0  # without the database; gateways live for longer, but what starts and ends is not seen
_PATIENCE_S = 1.0  # for a database that stands still; who waits is a viewer who sees nothing
_BOUND = 1.25  # of the mean load
_READ = "gateways"
_FREE = 20  # connections that a gateway may have in any case: means of a few say nothing


class KnownGateways:
    """A cached list of the gateways that are alive. Belongs to one event loop."""

    def __init__(self, gateways: Gateways, clock: Clock) -> None:
        self._gateways = gateways
        self._clock = clock
        self._rows: list[GatewayRow] = []
        self._read_s: float | None = None
        self._tried_s: float | None = None
        self._sent: Counter[str] = Counter()
        self._reading: SingleFlight[str, None] = SingleFlight()

    async def list(self) -> list[GatewayRow]:
        """Those that are alive, with what was sent to each since; empty when they cannot be known."""
        now_s = self._clock.monotonic_s()
        if _READ not in self._reading and (self._tried_s is None or now_s - self._tried_s >= _FRESH_S):
            self._tried_s = now_s
            self._reading.begin(_READ, self._read)
        if _READ in self._reading and (self._read_s is None or now_s - self._read_s >= _KEPT_S):
            await asyncio.wait({self._reading.begin(_READ, self._read)}, timeout=_PATIENCE_S)
        if self._read_s is None or self._clock.monotonic_s() - self._read_s >= _KEPT_S:
            return []
        return [
            GatewayRow(row.id, row.url, row.connections + self._sent[row.id], row.draining)
            for row in self._rows
        ]

    @property
    def is_reading(self) -> bool:
        """Whether the database is being asked."""
        return _READ in self._reading

    def note_sent(self, gateway_id: str) -> None:
        """Count a client that was sent to a gateway."""
        self._sent[gateway_id] += 1

    async def close(self) -> None:
        """End the read that is under way."""
        await self._reading.close()

    async def _read(self) -> None:
        try:
            rows = await self._gateways.list_alive()
        except Unavailable:
            return  # the gateways go on without the database, and so does whoever looks for one
        said = {row.id: row.connections for row in self._rows}
        # What was sent to a gateway that has reported since how many it has is among them. Others may have
        # reported too, with the same number: what was sent is forgotten within seconds.
        self._sent = Counter(
            {row.id: self._sent[row.id] // 2 for row in rows if said.get(row.id) == row.connections}
        )
        self._rows = rows
        self._read_s = self._clock.monotonic_s()


def order_gateways(gateways: Sequence[GatewayRow], program: str | None) -> list[GatewayRow]:
    """All of them, the one to try first at the head; `program` is that with its account."""
    if len(gateways) <= 1:
        return list(gateways)
    mean = sum(gateway.connections for gateway in gateways) / len(gateways)
    # The largest of such keys is each gateway's with a chance as its weight (Efraimidis and Spirakis 2006).
    by_chance = sorted(
        gateways,
        key=lambda gateway: random.random() ** (gateway.connections + mean / 2 + 1),  # noqa: S311 - no secret
        reverse=True,
    )
    if program is None:
        return by_chance
    most = max(_FREE, _BOUND * mean)
    within = [gateway for gateway in gateways if gateway.connections <= most]
    first = max(within, key=lambda gateway: _weight(program, gateway.id))
    return [first, *(gateway for gateway in by_chance if gateway is not first)]


def _weight(program: str, gateway_id: str) -> bytes:
    return blake2b(program.encode(), digest_size=8, key=gateway_id.encode()[:64]).digest()
