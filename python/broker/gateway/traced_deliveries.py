"""Spans of traced entries in a gateway: `fan-out` until native code has them, `deliver` until a socket does.

Native code tells nobody about a single entry; it counts what it has given to connections, by topic. So for
`deliver` that count is looked at again and again until it has moved, after pauses that double. The span ends
with the look that saw it: late by the last pause, about, which the span has as `broker.look_s`. A count that
moves for an entry just before counts, too. One delivery is watched at a time, and not too often, because each
look reads the figures of all topics.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from broker.clock import Clock
from broker.concurrency.tasks import cancel_and_wait, run_once
from broker.gateway.statistics import Counts
from broker.owners.encoding import find_traces
from broker.owners.protocol import Entry
from broker.tracing.tracer import Tracer

_PAUSES_S = tuple(0.0005 * 2**step for step in range(12))
"""Between two looks, some two seconds in all; what is later is a client's slowness, not ours."""
_REST_S = 0.1  # between two deliveries that are watched


class TracedDeliveries:
    """The `HandOvers` of a gateway with traces. Belongs to one event loop; `close` it there."""

    def __init__(self, tracer: Tracer, server: Counts, clock: Clock) -> None:
        self._tracer = tracer
        self._server = server
        self._clock = clock
        self._watching: asyncio.Task[None] | None = None
        self._rested_s = 0.0  # when the next delivery may be watched

    @contextmanager
    def handed_over(self, topic: str, entries: Sequence[Entry]) -> Iterator[None]:
        """Follow the entries of traced publishes, if there are any."""
        traces = find_traces(entries)
        if not traces:
            yield
            return
        delivered = self._look(topic) if self._may_watch() else None
        came_s = self._clock.monotonic_s()
        yield  # before anything else that could fail: entries that are not given to the sink are lost
        handed_s = self._clock.monotonic_s()
        spans = [self._tracer.begin("fan-out", trace, since_s=came_s) for trace in traces]
        for span in spans:
            span.end(until_s=handed_s)
        if delivered is not None:
            contexts = [span.context for span in spans]
            self._watching = run_once("delivery", self._watch(topic, delivered, contexts, handed_s))

    async def close(self) -> None:
        """Watch no more."""
        await cancel_and_wait(self._watching)

    def _may_watch(self) -> bool:
        is_watching = self._watching is not None and not self._watching.done()
        return not is_watching and self._clock.monotonic_s() >= self._rested_s

    def _look(self, topic: str) -> int | None:
        """What was given to connections of a topic; None when it has no subscriber."""
        stats = self._server.stats()
        return stats["topic_deliveries"].get(topic, 0) if stats["topics"].get(topic) else None

    async def _watch(self, topic: str, before: int, parents: Sequence[str], handed_s: float) -> None:
        """End the spans when the count is another than `before`; without a subscriber there are none."""
        try:
            for pause_s in _PAUSES_S:
                await asyncio.sleep(pause_s)
                delivered = self._look(topic)
                if delivered == before:
                    continue
                for parent in parents if delivered is not None else ():
                    looks = {"broker.look_s": pause_s}
                    self._tracer.begin("deliver", parent, looks, since_s=handed_s).end()
                return
        finally:
            self._rested_s = self._clock.monotonic_s() + _REST_S
