"""A gateway: the native server and its Python half, assembled and kept alive."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from broker._native import Server
from broker.concurrency.periodic import Periodic
from broker.concurrency.tasks import cancel_and_wait, failing, run_once
from broker.errors import BrokerError
from broker.gateway.backfill import Backfill
from broker.gateway.certificate import LOOK_S, CertificateWatch, KeyPair, read_key_pair
from broker.gateway.dispatcher import Dispatcher
from broker.gateway.handshakes import Handshakes
from broker.gateway.open_files import most_connections
from broker.gateway.open_polls import RENEW_S, OpenPolls
from broker.gateway.program_views import ProgramViews
from broker.gateway.projects import ProjectChannels
from broker.gateway.sessions import Sessions
from broker.gateway.statistics import Sampler
from broker.gateway.subscriptions import Subscriptions
from broker.gateway.topics import Followed, FollowedTopics
from broker.gateway.traced_deliveries import TracedDeliveries
from broker.gateway.upcalls import (
    AccessChange,
    Authenticate,
    ConnectsAnswered,
    Idle,
    OperationCall,
    ParsedUpcall,
    UpcallPump,
    VotesWaiting,
)
from broker.gateway.vote_forwarder import VoteForwarder
from broker.metrics import catalogue
from broker.metrics.counts import Sample
from broker.operations.known_gateways import url_template
from broker.operations.registry import Registry
from broker.operations.services import Services
from broker.owners.feed import Feed, Sink
from broker.owners.protocol import Attributes
from broker.settings import Settings
from broker.storage.gateways import GatewayRow, Gateways
from broker.storage.statistics_recorder import FLUSH_S

_log = logging.getLogger(__name__)

HEARTBEAT_S = 3.0
ACCOUNTS_S = 3.0  # a new account, or changed origins, count after this
SWEEP_S = 30.0
DRAIN_POLL_S = 0.05
DRAIN_GRACE_S = 5.0  # after the last reconnect is due, for close frames to be answered

# What is counted under which name inside, and what it is called outside.
_FIGURES = (
    ("connections", catalogue.CONNECTIONS),
    ("subscriptions", catalogue.SUBSCRIPTIONS),
    ("logs", catalogue.LOGS),
    ("log_bytes", catalogue.LOG_BYTES),
    ("deliveries", catalogue.DELIVERIES),
    ("delivered_bytes", catalogue.DELIVERED_BYTES),
    ("messages_in", catalogue.MESSAGES),
    ("handshakes", catalogue.HANDSHAKES),
    ("refused", catalogue.REFUSED),
    ("votes_native", catalogue.NATIVE_VOTES),
    ("sessions", catalogue.SESSIONS),
    ("calls_running", catalogue.CALLS_RUNNING),
    ("dead_loops", catalogue.DEAD_LOOPS),
)


class Gateway:
    """One gateway process's WebSocket door. `start` once, `stop` once; all on one event loop.

    Args:
        make_feed: makes the feed that gives entries to a sink; the gateway closes it.
        port: to listen on; 0 picks a free one.
        url: of the endpoint as clients reach it, `{account}` standing for the account's label.
        actor: the name by which other gateways find this process; empty when none can.
    """

    def __init__(
        self,
        services: Services,
        registry: Registry,
        make_feed: Callable[[Sink], Feed],
        *,
        host: str | None = None,
        port: int | None = None,
        url: str | None = None,
        actor: str = "",
    ) -> None:
        settings = services.settings
        self._services = services
        self._url = url or url_template(settings)
        self._actor = actor
        self._id = services.ids.uuid7()
        self._is_draining = False
        self._connects_answered: Callable[[], None] | None = None
        # The native server, and who is connected to it.
        pair = read_key_pair(settings)
        self._server = build_server(
            settings,
            pair=pair,
            host=settings.bind_host if host is None else host,
            port=settings.ws_port if port is None else port,
        )
        self._sessions = Sessions(self._server, services.auth, services.clock)
        # Topics, channels and recovery.
        self._topics = FollowedTopics(self._server, self._attributes_changed)
        self._feed = make_feed(self._topics.take_entries)
        self._topics.use(self._feed)
        self._deliveries: TracedDeliveries | None = None
        if services.tracer is not None:
            self._deliveries = TracedDeliveries(services.tracer, self._server, services.clock)
            self._feed.follow_traces(self._deliveries)
        self._projects = ProjectChannels(self._topics, self._server, services)
        self._views = ProgramViews(self._topics, self._server, services.ids)
        self._backfill = Backfill(self._server, self._feed, settings.history_events)
        self._subscriptions = Subscriptions(
            self._server,
            self._topics,
            self._projects,
            self._views,
            self._backfill,
            self._sessions,
            services,
        )
        # Votes.
        self._polls = OpenPolls(self._server, self._topics, services)
        self._votes = VoteForwarder(self._server, self._polls, services)
        # Calls and handshakes that native code leaves to Python.
        self._dispatcher = Dispatcher(
            self._server,
            services,
            registry,
            self._sessions,
            {
                "subscribe": self._subscriptions.subscribe,
                "unsubscribe": self._subscriptions.unsubscribe,
            },
            answered={"respond": self._polls.answered, "impression": self._polls.answered},
            votes_before=self._votes.all_before,
        )
        self._server.prepare_votes(
            self._dispatcher.name,
            services.audience.per_connection.buckets,
            services.audience.per_address.buckets,
            settings.counters,
        )
        self._handshakes = Handshakes(self._server, self._sessions)
        self._pump = UpcallPump(self._server, self._take)
        # Periodic work.
        self._gateways = Gateways(services.database)
        self._rounds = [
            Periodic("heartbeat", HEARTBEAT_S, self._beat),
            Periodic("accounts", ACCOUNTS_S, self._read_accounts),
            Periodic("gateways", HEARTBEAT_S, services.known_gateways.refresh),
            Periodic("sessions", SWEEP_S, self._sweep),
            Periodic("polls", RENEW_S, self._polls.renew_when_open),
        ]
        self._certificate = None if pair is None else CertificateWatch(settings, self._server, pair)
        if self._certificate is not None:
            self._rounds.append(Periodic("certificate", LOOK_S, self._certificate.look))
        self._sampler = Sampler(self._server, self._topics, services) if settings.statistics else None
        if self._sampler is not None:
            self._rounds.append(Periodic("statistics", FLUSH_S, self._sampler.sample))
        self._refreshes: set[asyncio.Task[None]] = set()

    def lend_server(self, connects_answered: Callable[[], None]) -> Server:
        """The native server, for who lets it answer `GET /connect`, and is called when it has."""
        self._connects_answered = connects_answered
        return self._server

    async def start(self) -> int:
        """Take connections. Returns the port.

        Raises:
            Unavailable: the accounts cannot be read.
            OSError: the port is not available.
        """
        await self._read_accounts()
        self._services.auth.on_revocation(self._revoke)
        self._services.auth.on_key_revocation(self._revoke_key)
        self._services.auth.on_change(self._refresh)
        self._server.set_time(self._services.clock.now_ms())
        port = self._server.start()
        self._pump.start()
        self._handshakes.start()
        self._polls.start()
        self._votes.start()
        for each in self._rounds:
            each.start()
        await self._try_beat()
        await self._services.known_gateways.refresh()
        return port

    async def drain(self, over_s: float) -> None:
        """Take no new connections, ask every client to reconnect elsewhere, and return when all have left.

        Clients are spread over `over_s` seconds; those that have not gone soon after are left to `stop`.
        """
        self._is_draining = True
        await self._try_beat()
        self._server.drain(over_s)
        clock = self._services.clock
        deadline_s = clock.monotonic_s() + over_s + DRAIN_GRACE_S
        while clock.monotonic_s() < deadline_s:
            if not self._server.stats()["connections"]:
                return
            await asyncio.sleep(DRAIN_POLL_S)

    async def stop(self) -> None:
        """Close all connections and end every task. Idempotent."""
        for each in self._rounds:
            await each.stop()
        await cancel_and_wait(*self._refreshes)
        if self._sampler is not None:
            await self._sampler.close()
        # What has come is answered, and what still comes too, until the connections are closed.
        await self._polls.stop()
        await self._dispatcher.close()
        await self._votes.stop()
        self._pump.stop()
        await self._handshakes.stop()
        await self._backfill.close()
        await self._projects.close()
        await self._topics.close()
        await self._feed.close()
        if self._deliveries is not None:
            await self._deliveries.close()
        await asyncio.to_thread(self._server.stop)
        try:
            await self._gateways.remove(self._id)
        except BrokerError as error:
            _log.warning("gateway_not_removed", extra={"cause": error.message})

    def stats(self) -> dict[str, Any]:
        """What the native server counts, and `sessions`, `calls_running` and `calls_waiting` beside."""
        stats = self._server.stats()
        stats["sessions"] = len(self._sessions)
        stats["calls_running"] = self._dispatcher.running
        stats["calls_waiting"] = self._dispatcher.waiting
        return stats

    def find_fault(self) -> str:
        """What is wrong for good, so that the gateway has to be exchanged; empty when nothing is."""
        dead = self._server.dead_loops()
        return f"event loops that have died: {dead}" if dead else ""

    def figures(self) -> Iterator[Sample]:
        """What the gateway has to tell now. Event loops are asked how late they are, for the next time."""
        stats = self.stats()
        self._server.probe()
        for key, definition in _FIGURES:
            yield Sample(definition.name, (), stats[key])
        for code, reason, count in stats["closes"]:
            yield Sample(catalogue.CLOSES.name, (code, reason), count)
        counts, sum_us = stats["delays"]
        yield Sample(catalogue.DELAY_SECONDS.name, (), [*counts, sum_us / 1e6])
        for outcome, count in stats["tls"]:
            yield Sample(catalogue.TLS_HANDSHAKES.name, (outcome,), count)
        if self._certificate is not None:
            yield from self._certificate.figures()
        for loop, lag_us in enumerate(stats["loop_lags_us"]):
            yield Sample(catalogue.LOOP_LAG.name, (str(loop),), lag_us / 1e6)
        yield Sample(catalogue.RATE_LIMITED.name, ("messages",), stats["rate_limited"])
        yield Sample(catalogue.QUEUE.name, ("calls",), stats["calls_waiting"])

    def _take(self, request: ParsedUpcall) -> None:
        if isinstance(request, OperationCall):
            self._dispatcher.dispatch(request)
        elif isinstance(request, Authenticate):
            self._handshakes.submit(request)
        elif isinstance(request, Idle):
            self._subscriptions.close_if_idle(request)
        elif isinstance(request, VotesWaiting):
            self._votes.arrived(request.counter)
        elif isinstance(request, ConnectsAnswered):
            assert self._connects_answered is not None, "who lets native code answer listens"
            self._connects_answered()
        else:
            assert isinstance(request, AccessChange), "every kind of upcall has its place"
            self._subscriptions.decide_again(request)

    def _attributes_changed(self, followed: Followed, before: Attributes, now: Attributes) -> None:
        self._projects.attributes_changed(followed, before, now)
        self._subscriptions.attributes_changed(followed, before, now)

    def _revoke(self, account: str, subject: str, valid_from_ms: int) -> None:
        self._sessions.revoke(account, subject, valid_from_ms)
        if self._sessions.are_in_question(account, subject):
            self._run_refresh(self._sessions.look_up_again(account, subject))

    def _revoke_key(self, key_id: str) -> None:
        _log.warning("key_revoked", extra={"key": key_id, "sessions": self._sessions.revoke_key(key_id)})

    def _refresh(self, account: str, subject: str) -> None:
        self._run_refresh(self._sessions.refresh(account, subject))

    def _run_refresh(self, refresh: Coroutine[Any, Any, None]) -> None:
        task = run_once("session refresh", refresh)
        self._refreshes.add(task)
        task.add_done_callback(self._refreshes.discard)

    async def _read_accounts(self) -> None:
        settings = self._services.settings
        accounts = await self._services.accounts.list()
        for account in accounts:
            self._services.event_rates.learn(account.name, account.quotas.events)
        origins = {
            account.name: None if account.origins is None else list(account.origins) for account in accounts
        }
        self._server.set_accounts(settings.public_host, settings.default_account, origins)

    async def _sweep(self) -> None:
        self._sessions.sweep()

    async def _try_beat(self) -> None:
        try:
            await self._beat()
        except BrokerError as error:
            _log.warning("heartbeat_failed", extra={"cause": error.message})

    async def _beat(self) -> None:
        self._server.set_time(self._services.clock.now_ms())
        connections = self._server.stats()["connections"]
        row = GatewayRow(self._id, self._url, connections, self._is_draining, tuple(failing()), self._actor)
        await self._gateways.beat(row)


def build_server(settings: Settings, *, host: str, port: int, pair: KeyPair | None = None) -> Server:
    """The native server as the settings want it; nothing is opened yet.

    Args:
        pair: with one, it speaks TLS only.

    Raises:
        ValueError: the certificate and the key cannot be used.
    """
    return Server(
        host=host,
        port=port,
        loops=settings.gateway_loops,
        send=settings.gateway_send,
        message_limit_bytes=settings.ws_message_limit_bytes,
        ping_s=settings.ws_ping_s,
        pong_s=settings.ws_pong_s,
        alive_s=settings.ws_alive_s,
        handshake_s=settings.ws_handshake_s,
        lag_bytes=settings.ws_lag_bytes,
        lag_s=settings.ws_lag_s,
        connections=_connections(settings),
        connections_per_address=settings.ws_connections_per_address,
        subscriptions=settings.ws_subscriptions,
        messages_per_s=settings.ws_messages_per_s,
        messages_burst=settings.ws_messages_burst,
        history_entries=settings.history_events,
        history_s=settings.history_hours * 3_600,
        log_bytes=settings.history_bytes,
        trusted_proxies=list(settings.trusted_proxies),
        proxy_protocol=list(settings.proxy_protocol),
        unlimited_addresses=list(settings.ws_unlimited_addresses),
        waiting_bytes=settings.ws_waiting_bytes,
        certificate=None if pair is None else (pair.chain, pair.key),
    )


def _connections(settings: Settings) -> int:
    """How many connections the gateway may have here; says so when these are fewer than wanted."""
    most = most_connections(settings.ws_connections)
    if most < settings.ws_connections:
        fields = {"connections": most, "wanted": settings.ws_connections}
        _log.warning("connections_limited_by_open_files", extra=fields)
    return most
