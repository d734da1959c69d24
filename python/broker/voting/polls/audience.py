"""The services that the operations on polls, votes and results share in one process."""

from collections.abc import Mapping
from dataclasses import dataclass

from broker.clock import Clock
from broker.concurrency.loading_cache import LoadingCache
from broker.limits.local_rates import LocalRate
from broker.limits.rate_limits import Rate
from broker.owners.client import Owners
from broker.settings import Settings
from broker.storage.database import Database
from broker.storage.polls import Polls
from broker.storage.vote_patterns import StoredPatterns
from broker.voting.counting.client import Counters
from broker.voting.polls.final_results import FinalResults
from broker.voting.polls.known_polls import KnownPolls
from broker.voting.polls.news import VoteNews
from broker.voting.polls.visitor_admission import VisitorAdmission
from broker.voting.polls.vote_patterns import VotePatterns

_RESULTS_S = 0.5  # half of what results may be behind; the rest is for the query
_RESULTS = 5_000  # remembered at a time


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
        visitors: who counts as a visitor, by account.
        patterns: how votes of watched polls come.
    """

    counters: Counters
    polls: Polls
    known: KnownPolls
    results: LoadingCache[tuple[str | None, ...], LiveReply]
    final: FinalResults
    news: VoteNews
    visitors: VisitorAdmission
    patterns: VotePatterns
    per_address: LocalRate
    per_connection: LocalRate
    names_per_address: LocalRate

    async def close(self) -> None:
        """End the queries that are under way."""
        await self.known.close()
        await self.results.close()
        await self.visitors.close()
        await self.patterns.close()


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
        visitors=VisitorAdmission(settings, clock, database),
        patterns=VotePatterns(StoredPatterns(database), clock),
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
