"""The gateway's statistics: connections, subscribers and deliveries, sampled every few seconds.

Native code counts; nothing is done here for a viewer or a delivery. Subscriptions to an account's channels
and what is delivered on them count for the account, not for a program.
"""

from typing import Any, Protocol

from broker.domain.statistics import Subject
from broker.gateway.topics import Followed
from broker.operations.services import Services
from broker.storage.statistics import Statistics
from broker.storage.statistics_recorder import Recorder


class Counts(Protocol):
    """The part of the native server that is looked at."""

    def stats(self) -> dict[str, Any]:
        """The counts of the native server since its start."""


class Follows(Protocol):
    """The part of the gateway's topics that is looked at."""

    def find(self, topic: str) -> Followed | None:
        """The topic when it is open."""


class Sampler:
    """Looks at what native code has counted and records it. One `sample` at a time."""

    def __init__(self, server: Counts, topics: Follows, services: Services) -> None:
        self._server = server
        self._topics = topics
        self._clock = services.clock
        self._recorder = Recorder(Statistics(services.database), services.clock, services.ids)
        self._subjects: dict[str, Subject] = {}
        self._delivered: dict[str, int] = {}

    async def sample(self) -> None:
        """Look, and write what has come together. Raises Unavailable; nothing is lost by that."""
        self.look()
        await self._recorder.flush()

    async def close(self) -> None:
        """Look a last time, while the server still counts, and write the rest."""
        self.look()
        await self._recorder.close()

    def look(self) -> None:
        """Add what has happened since the last look; does not write."""
        stats, now_ms, tally = self._server.stats(), self._clock.now_ms(), self._recorder.tally
        totals: dict[str, list[int]] = {name: [count, 0, 0] for name, count in stats["accounts"].items()}
        subjects: dict[str, Subject] = {}
        for topic, subscribers in stats["topics"].items():
            delivered = stats["topic_deliveries"].get(topic, 0)
            before = self._delivered.get(topic, 0)
            # A log that was closed and opened again between two looks counts from 0.
            deliveries = delivered - before if delivered >= before else delivered
            total = totals.setdefault(topic.partition("/")[0], [0, 0, 0])
            total[1] += subscribers
            total[2] += deliveries
            subject = self._subject(topic)
            if subject is not None:
                subjects[topic] = subject
                tally.observe(now_ms, subject, subscribers=subscribers)
                tally.count(now_ms, subject, deliveries=deliveries)
        for account, (connections, subscribers, deliveries) in totals.items():
            tally.observe(now_ms, Subject(account), connections=connections, subscribers=subscribers)
            tally.count(now_ms, Subject(account), deliveries=deliveries)
        self._delivered = stats["topic_deliveries"]
        self._subjects = subjects

    def _subject(self, topic: str) -> Subject | None:
        """The topic's program with its project, as it was last known; None of a channel."""
        account, kind, name = topic.split("/", 2)
        if kind != "program":
            return None
        followed = self._topics.find(topic)
        if followed is None or followed.attributes is None:
            return self._subjects.get(topic)
        return Subject(account, name, followed.attributes.project_id or "")
