"""The services that the operations on polls, votes and results share in one process."""

from collections.abc import Mapping
from dataclasses import dataclass

from broker.auth.local_rates import LocalRate
from broker.auth.rate_limits import Rate
from broker.auth.signed_visitors import VisitorKey, read_key
from broker.clock import Clock
from broker.concurrency.loading_cache import LoadingCache
from broker.owners.client import Owners
from broker.settings import Settings
from broker.storage.database import Database
from broker.storage.polls import Polls
from broker.storage.visitor_keys import VisitorKeys
from broker.voting.counting.client import Counters
from broker.voting.polls.final_results import FinalResults
from broker.voting.polls.known_polls import KnownPolls
from broker.voting.polls.news import VoteNews

_RESULTS_S = 0.5  # half of what results may be behind; the rest is for the query
_RESULTS = 5_000  # remembered at a time
_KEYS_S = 5.0  # a key that is taken away holds so much longer
_KEYS = 10_000  # accounts whose keys are remembered at a time


@dataclass(frozen=True, slots=True)
class LiveReply:
    """Live results as every reader of them gets them: UTF-8 JSON, and the headers of HTTP."""

    body: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Audience:
    """One of each; `close` ends what is under way.

    Attributes:
        results: live results by what they are of.
        final: says which of them change no more.
        keys: those that sign an account's visitors, by account.
    """

    counters: Counters
    polls: Polls
    known: KnownPolls
    results: LoadingCache[tuple[str | None, ...], LiveReply]
    final: FinalResults
    news: VoteNews
    stored_keys: VisitorKeys
    keys: LoadingCache[str, tuple[VisitorKey, ...]]
    per_address: LocalRate
    per_connection: LocalRate
    names_per_address: LocalRate

    async def close(self) -> None:
        """End the queries that are under way."""
        await self.known.close()
        await self.results.close()
        await self.keys.close()

    async def visitor_keys(self, account: str) -> tuple[VisitorKey, ...]:
        """The keys that sign an account's visitors, as of some seconds ago. Raises NotFound, Unavailable."""

        async def load() -> tuple[VisitorKey, ...]:
            return tuple(read_key(text) for text in await self.stored_keys.get(account))

        return await self.keys.load(account, load)


def build_audience(
    settings: Settings, clock: Clock, database: Database, counters: Counters, owners: Owners
) -> Audience:
    """What one process needs to take votes and to tell results."""
    polls = Polls(database)
    return Audience(
        counters=counters,
        polls=polls,
        known=KnownPolls(polls, clock, settings),
        results=LoadingCache(clock, _RESULTS_S, _RESULTS),
        final=FinalResults(polls, clock, settings),
        news=VoteNews(owners, clock),
        stored_keys=VisitorKeys(database),
        keys=LoadingCache(clock, _KEYS_S, _KEYS),
        per_address=LocalRate(
            clock, Rate(settings.responses_rate_per_address, settings.responses_burst_per_address)
        ),
        names_per_address=LocalRate(
            clock,
            Rate(settings.responses_names_rate_per_address, settings.responses_names_burst_per_address),
            name="names",
        ),
        per_connection=LocalRate(
            clock, Rate(settings.responses_rate_per_connection, settings.responses_burst_per_connection)
        ),
    )
