"""The services that operations use; the composition root creates them once per process."""

from dataclasses import dataclass

from broker.auth.authenticator import Authenticator
from broker.auth.known_accounts import KnownAccounts
from broker.clock import Clock
from broker.fetching.fetcher import FetchConfig, Fetcher
from broker.fetching.urls import AllowList
from broker.ids import IdSource
from broker.images.account_rules import rule_book
from broker.limits.long_lists import LongLists
from broker.limits.rate_limits import Rate, RateLimit
from broker.limits.shared_rates import EventRates
from broker.operations.analytics_platform import AnalyticsPlatforms, wanted_of
from broker.operations.health import ProductHealth
from broker.operations.image_warmer import ImageWarmer
from broker.operations.known_gateways import KnownGateways
from broker.operations.known_maintenance import KnownMaintenance
from broker.operations.list_turns import ListTurns
from broker.operations.presence import Presence
from broker.operations.report_replies import ReportConfig, ReportReplies
from broker.operations.source_replies import SourceReplies, SourceReplyConfig
from broker.owners.client import Owners
from broker.settings import Settings
from broker.storage.accounts import Accounts
from broker.storage.analytics import Analytics
from broker.storage.api_tokens import ApiTokens
from broker.storage.audit import Audit
from broker.storage.data_sources import DataSources
from broker.storage.database import Database
from broker.storage.events import Events
from broker.storage.gateways import Gateways
from broker.storage.idempotency import Idempotency
from broker.storage.image_purges import ImagePurges
from broker.storage.image_rules import ImageRules
from broker.storage.imports import Imports
from broker.storage.programs import Programs
from broker.storage.projects import Projects
from broker.storage.rate_buckets import RateBuckets
from broker.storage.revisions import Revisions
from broker.storage.statistics import Statistics
from broker.storage.statistics_recorder import Recorder
from broker.storage.stored_values import StoredValues
from broker.storage.users import Users
from broker.tracing.tracer import Tracer
from broker.voting.counting.client import Counters
from broker.voting.polls.audience import Audience, build_audience


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """One of each; every field is safe for concurrent use within one event loop.

    `recorder` counts what the process itself takes, None while the statistics are off. Who opened the
    services runs it and closes it, runs `image_warmer` where that is on, and closes what was passed in.
    `tracer` is None while traces are off.
    """

    settings: Settings
    clock: Clock
    ids: IdSource
    database: Database
    accounts: Accounts
    known_accounts: KnownAccounts
    event_rates: EventRates
    users: Users
    api_tokens: ApiTokens
    programs: Programs
    projects: Projects
    revisions: Revisions
    stored_values: StoredValues
    storage_rate: RateLimit
    data_sources: DataSources
    analytics: AnalyticsPlatforms
    source_replies: SourceReplies
    fetch_rate: RateLimit
    events: Events
    lists: ListTurns
    long_lists: LongLists
    imports: Imports
    idempotency: Idempotency
    statistics: Statistics
    recorder: Recorder | None
    presence: Presence
    audit: Audit
    auth: Authenticator
    login_rate: RateLimit
    owners: Owners
    audience: Audience
    known_gateways: KnownGateways
    image_purges: ImagePurges
    image_warmer: ImageWarmer
    health: ProductHealth
    maintenance: KnownMaintenance
    tracer: Tracer | None

    async def close(self) -> None:
        """End what runs in them."""
        for each in (self.health, self.image_warmer, self.known_gateways, self.known_accounts, self.audience):
            await each.close()
        await self.analytics.close()
        await self.source_replies.close()


def build_services(
    settings: Settings,
    clock: Clock,
    ids: IdSource,
    database: Database,
    *,
    auth: Authenticator,
    owners: Owners,
    counters: Counters,
    health: ProductHealth,
    maintenance: KnownMaintenance,
    fetcher: Fetcher | None = None,
    ingress_host: str = "127.0.0.1",
    tracer: Tracer | None = None,
) -> Services:
    """The services of one process over one database.

    Args:
        ingress_host: where the ingress of this node listens.
        fetcher: of the data sources; None makes the one that the settings ask for.
    """
    accounts, buckets = Accounts(database), RateBuckets(database)
    event_rates = EventRates(buckets, clock)
    fetcher = fetcher or Fetcher(FetchConfig(AllowList(settings.fetch_allow_hosts)))
    statistics = Statistics(database)
    purges = ImagePurges(database)
    return Services(
        # What every operation needs.
        settings=settings,
        clock=clock,
        ids=ids,
        database=database,
        accounts=accounts,
        known_accounts=KnownAccounts(accounts, clock, event_rates),
        event_rates=event_rates,
        users=Users(database),
        api_tokens=ApiTokens(database),
        # Repositories, and the services over them.
        programs=Programs(database, clock),
        projects=Projects(database, clock),
        revisions=Revisions(database),
        stored_values=StoredValues(database),
        storage_rate=RateLimit(
            "storage",
            buckets,
            clock,
            per_address=Rate(settings.storage_rate_per_address, settings.storage_burst_per_address),
            per_account=Rate(settings.storage_rate_per_account, settings.storage_burst_per_account),
        ),
        # Upstream servers: Matomo and data sources.
        data_sources=DataSources(database),
        analytics=AnalyticsPlatforms(
            settings,
            ids,
            clock,
            Analytics(database, clock),
            ReportReplies(clock, ReportConfig(settings.report_limit_bytes, settings.report_cache_bytes)),
            wanted_of(settings),
        ),
        source_replies=SourceReplies(
            fetcher,
            clock,
            SourceReplyConfig(
                max_bytes=settings.fetch_limit_bytes,
                project_requests=settings.fetch_project_requests,
                cache_bytes=settings.fetch_cache_bytes,
            ),
        ),
        fetch_rate=RateLimit(
            "fetch",
            buckets,
            clock,
            per_address=Rate(settings.fetch_rate_per_address, settings.fetch_burst_per_address),
            per_account=Rate(settings.fetch_rate_per_account, settings.fetch_burst_per_account),
        ),
        # Events, and what is counted and recorded of calls.
        events=Events(database),
        lists=ListTurns(settings.database_pool, settings.database_timeout_s),
        long_lists=LongLists(clock, settings),
        imports=Imports(database),
        idempotency=Idempotency(database),
        statistics=statistics,
        recorder=Recorder(statistics, clock, ids) if settings.statistics else None,
        presence=Presence(statistics, clock, is_on=settings.statistics),
        audit=Audit(database),
        auth=auth,
        # Log-in.
        login_rate=RateLimit(
            "login",
            buckets,
            clock,
            per_address=Rate(settings.login_rate_per_address, settings.login_burst_per_address),
            per_account=Rate(settings.login_rate_per_account, settings.login_burst_per_account),
        ),
        # What goes on in other processes: owners, counters, gateways, the image proxy.
        owners=owners,
        audience=build_audience(settings, clock, database, counters, owners),
        known_gateways=KnownGateways(Gateways(database), clock, settings),
        image_purges=purges,
        image_warmer=ImageWarmer(
            settings,
            ingress_host,
            rule_book(ImageRules(database), clock).get,
            purges.get_head,
            clock,
        ),
        health=health,
        maintenance=maintenance,
        tracer=tracer,
    )
