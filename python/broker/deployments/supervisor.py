"""`broker up`: starts the product on this machine, keeps it running, and stops it.

What it holds itself: the claim to the data directory, the embedded PostgreSQL, and the conductor
(`broker.deployments.conductor`), the process that has Ray and the parts on it. It neither imports Ray nor
serves requests, so little can go wrong here. A part that dies is restarted by its owner: the server by
`EmbeddedPostgres.supervise`, the conductor with the whole of Ray here, everything else by Ray and the
conductor.

When this process is killed, the conductor sees its input end and stops; what was killed along with it, is
found by its mark at the next start on the same data directory.
"""

import asyncio
import logging
import os
import resource
import secrets
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from broker.concurrency.back_off import Backoff, Delays
from broker.concurrency.tasks import cancel_and_wait, keep_running
from broker.deployments.conductor_process import ConductorProcess, TellPart
from broker.deployments.data_dir import Claim, claim
from broker.deployments.ports import require_free
from broker.deployments.preparation import prepare_apart
from broker.deployments.processes import end_marked
from broker.deployments.ray_internals import ray_logs
from broker.deployments.reloads import Reloads
from broker.errors import Unavailable
from broker.logs import RAY_SHARE, configure_logs
from broker.settings import Settings
from broker.setup_error import SetupError
from broker.storage.embedded.server import EmbeddedPostgres

if TYPE_CHECKING:
    from broker.storage.conductor_lease import ConductorLease

T = TypeVar("T")

_START_S = 120.0
_FILES = 1_048_576  # the kernel's own limit for a process (fs.nr_open)
_LEASE_ROUND_S = 2.0  # between two tries to take or renew the lease, which lasts for ten seconds
_STOP_S = 12.5  # of the fifteen that a stop may take
_RESTART = Backoff(1.0, 30.0, jitter=0)

_log = logging.getLogger(__name__)


class Restarts:
    """When a conductor that has ended is started again: at once if it was ready, later if it never was."""

    def __init__(self) -> None:
        self._delays = Delays(_RESTART)

    def next_s(self, *, was_ready: bool) -> float:
        """Seconds to wait now. A start that succeeded counts as such, however soon the conductor has died."""
        if not was_ready:
            return self._delays.next_s()
        self._delays.reset()
        return 0.0


class Supervisor:
    """One run of the product. `run` once."""

    def __init__(
        self, settings: Settings, report: TellPart, load: Callable[[], Settings] | None = None
    ) -> None:
        """Args: load: the settings as they are now, for a reload; without it they are as they were."""
        self._settings = replace(settings, data_dir=settings.data_dir.absolute())
        self._report = report
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._conductor: ConductorProcess | None = None
        self._successor: ConductorProcess | None = None  # while it starts beside the conductor
        self._lease: ConductorLease | None = None
        self._dsn = ""  # empty until this instance may conduct on the database
        self._is_ready = asyncio.Event()
        self._was_ready_once = False
        self._reloads = Reloads(self, load or (lambda: settings), report, self._settings.data_dir)

    async def run(self) -> None:
        """Return after a stop that was asked for by a signal.

        Raises:
            SetupError: a part cannot start; one line that says which and why.
            SettingError: a setting has a value that cannot be.
        """
        self._hear_signals()
        _raise_file_limit()
        os.umask(0o077)
        held = claim(self._settings.data_dir)
        configure_logs(self._settings, "up")
        pruning = asyncio.create_task(self._prune_logs(held))
        try:
            left = await asyncio.to_thread(end_marked, held.mark)
            if left:
                self._report("cleanup", f"ended {left} processes that an earlier run left")
            if not self._settings.ray_address:  # else the ports may be those of parts that went on without us
                require_free(self._settings.bind_host, self._settings.http_port, "--http-port")
                require_free(self._settings.bind_host, self._settings.ws_port, "--ws-port")
                require_free(self._settings.ops_host, self._settings.operations_port, "BROKER_OPS_PORT")
            await self._run(held)
        finally:
            await cancel_and_wait(pruning)
            await asyncio.to_thread(held.remove_scratch)
            held.release()

    async def _run(self, held: Claim) -> None:
        server = None if self._settings.database_url else self._embedded(held)
        keep: asyncio.Task[None] | None = None
        leased: asyncio.Task[None] | None = None
        self._reloads.begin()
        reloading = keep_running("reload", self._reloads.run)
        try:
            # Ray takes seconds to start and needs no database: both at once.
            await self._start_conductor(held)
            ready = asyncio.create_task(self._watch_conductor(held))
            try:
                # Start our database and supervise it, or take the lease of another one.
                dsn = await self._unless_stopped(self._start_database(server))
                if server is not None:
                    keep = keep_running("postgres", server.supervise)
                else:
                    lease = self._lease = await self._open_lease(held, dsn)
                    await self._unless_stopped(self._take(lease), ready)
                    leased = asyncio.create_task(self._keep_lease(lease))
                # The conductor starts the parts with it; then wait for a stop, or until one of these ends.
                self._dsn = dsn
                await self._unless_stopped(self._hand_over(self._conductor))
                ready_in_time = asyncio.wait_for(self._is_ready.wait(), _START_S)
                await self._unless_stopped(ready_in_time, ready, leased)
                self._report("ready", self._addresses())
                await self._unless_stopped(self._stopping.wait(), ready, leased)
            finally:
                await cancel_and_wait(ready, leased)
        except _Stopped:
            pass
        except TimeoutError:
            raise SetupError(
                f"the parts did not start within {_START_S:g} s; see {held.path / 'log'}"
            ) from None
        finally:
            # Stop in the reverse order: the parts need the database to the end.
            await cancel_and_wait(reloading)
            await self._stop_conductor(held)
            await cancel_and_wait(keep)
            if self._lease is not None:
                await self._lease.close()
            if server is not None:
                await server.stop()

    async def _open_lease(self, held: Claim, dsn: str) -> "ConductorLease":
        from broker.storage.conductor_lease import ConductorLease  # with the driver, which few have here

        return await ConductorLease.open(dsn, held.mark)

    async def _take(self, lease: "ConductorLease") -> None:
        """Return when nobody else conducts on this database, which may be away meanwhile."""
        is_told = False
        while True:
            try:
                if await lease.take():
                    return
            except Unavailable as error:
                _log.warning("conductor_lease_unknown", extra={"cause": error.log_text})
            else:
                if not is_told:
                    self._report(
                        "waiting", "another `broker up` conducts on this database; this one is its spare"
                    )
                is_told = True
            await asyncio.sleep(_LEASE_ROUND_S)

    async def _keep_lease(self, lease: "ConductorLease") -> None:
        """Renew the lease, and let conductors know, until cancelled.

        They stop acting by themselves when it lapses.

        Raises:
            SetupError: another `broker up` has had it. What this one started on a joined cluster is theirs
                now.
        """
        while True:
            await asyncio.sleep(_LEASE_ROUND_S)
            try:
                is_ours = await lease.renew()
            except Unavailable as error:
                _log.warning("conductor_lease_unknown", extra={"cause": error.log_text})
                continue
            if is_ours:
                for conductor in (self._conductor, self._successor):
                    if conductor is not None:
                        await conductor.say({"lease_until_s": lease.until_s})
            else:
                self._is_ready.clear()  # so that the conductor ends without stopping anything
                raise SetupError("another `broker up` took over this database while this one was unreachable")

    async def _prune_logs(self, held: Claim) -> None:
        """Keep what Ray writes within its share, until cancelled."""
        while True:
            share = self._settings.log_limit_bytes // RAY_SHARE
            await asyncio.to_thread(ray_logs.prune, held.log, share)
            await asyncio.sleep(ray_logs.LOOK_S)

    def _embedded(self, held: Claim) -> EmbeddedPostgres:
        return EmbeddedPostgres(held.postgres, binaries=self._settings.postgres_bin)

    async def _start_database(self, server: EmbeddedPostgres | None) -> str:
        dsn = self._settings.database_url if server is None else await server.start()
        prepared = await prepare_apart(self._settings, dsn)
        self._report("postgresql", f"{prepared.version}, {'embedded' if server else 'as configured'}")
        for risk in prepared.risks:
            self._report("warning", f"PostgreSQL: {risk}")
            _log.warning("database_not_durable", extra={"cause": risk})
        self._report("schema", ", ".join(prepared.applied) if prepared.applied else "up to date")
        self._report("account", prepared.account)
        return dsn

    async def _start_conductor(self, held: Claim) -> None:
        """Start the first one, or one in the place of one that has ended; nothing of the instance runs."""
        self._is_ready.clear()
        await asyncio.to_thread(held.make_scratch)
        self._conductor = ConductorProcess(self._settings, held, held.scratch, self._report)
        await self._conductor.start()

    async def _watch_conductor(self, held: Claim) -> None:
        """Have a conductor at all times, once the first one was ready.

        Raises:
            SetupError: the first one ended before it was ready.
        """
        restarts = Restarts()
        starts = 0
        while True:
            starts += 1
            reason = await self._until_ended(held)
            assert self._conductor is not None, "it has ended"
            # Ray gives itself half a minute to start, which a busy machine may exceed once.
            if not self._was_ready_once and (self._conductor.had_ray or starts > 1):
                raise SetupError(reason or f"the parts ended at their start; see {held.path / 'log'}")
            self._report("warning", f"Ray ended ({reason or 'killed'}); starting it again")
            await asyncio.sleep(restarts.next_s(was_ready=self._conductor.is_ready.is_set()))
            await self._conductor.kill()
            await asyncio.to_thread(end_marked, held.mark)
            await self._start_conductor(held)
            if self._dsn:
                await self._hand_over(self._conductor)

    async def _until_ended(self, held: Claim) -> str:
        """Return when there is no conductor any more; why it failed, if it said so.

        One whose Ray is damaged goes on serving while another one starts beside it, which takes over.
        """
        delays = Delays(_RESTART)
        while True:
            conductor = self._conductor
            assert conductor is not None, "one was started"
            if not conductor.is_ready.is_set():
                # The first start has a time limit of its own, and may wait for a lease for ever.
                limit_s = _START_S if self._was_ready_once else None
                await self._first_of(conductor.wait(), conductor.is_ready.wait(), timeout_s=limit_s)
                if conductor.is_running and not conductor.is_ready.is_set():
                    return f"the parts did not start within {_START_S:g} s"
            if conductor.is_ready.is_set() and not self._is_ready.is_set():
                self._note_ready()
            await self._first_of(conductor.wait(), conductor.is_damaged.wait())
            if not conductor.is_running:
                return await conductor.wait()
            if not await self._succeed(held, conductor):
                await delays.wait()

    async def _succeed(self, held: Claim, old: ConductorProcess) -> bool:
        """Start a conductor beside a damaged one and let it take over; whether it has."""
        scratch = held.scratch / secrets.token_hex(1)
        scratch.mkdir(mode=0o700, exist_ok=True)
        new = ConductorProcess(self._settings, held, scratch, self._report)
        try:
            await new.start(succeeds=True)
            self._successor = new
            await self._hand_over(new)
            await self._first_of(old.wait(), new.wait(), new.is_ready.wait(), timeout_s=_START_S)
            if not new.is_running or (old.is_running and not new.is_ready.is_set()):
                reason = await new.kill()
                reason = reason or "it does not answer"
                self._report("warning", f"another Ray cannot be started yet: {reason}")
                return False
        except BaseException:
            await new.kill()
            raise
        finally:
            self._successor = None
        self._conductor = new
        await old.kill()
        await asyncio.to_thread(held.clear_scratch, scratch)
        if new.is_ready.is_set():
            self._report("warning", "all parts are up again")
        else:
            self._is_ready.clear()  # the damaged one has ended before
        return True

    def _note_ready(self) -> None:
        if self._was_ready_once:
            self._report("warning", "all parts are up again")
        self._was_ready_once = True
        self._is_ready.set()

    async def _hand_over(self, conductor: ConductorProcess | None) -> None:
        """Have a conductor start the parts, for as long as the lease lasts."""
        assert conductor is not None, "it was started"
        lease = self._lease
        until_s, term = (None, None) if lease is None else (lease.until_s, lease.term)
        await conductor.say({"dsn": self._dsn, "lease_until_s": until_s, "term": term})

    async def _stop_conductor(self, held: Claim) -> None:
        """Let it drain and end; then end whatever is left of it."""
        conductor = self._conductor
        if conductor is not None:
            if conductor.is_running and self._is_ready.is_set():
                self._report("stopping", "connections are drained; Ctrl-C again to cut them")
                await conductor.say({"do": "stop"})
                await self._first_of(conductor.wait(), self._hurry.wait(), timeout_s=_STOP_S)
            await conductor.kill()
        await asyncio.to_thread(end_marked, held.mark)

    async def _unless_stopped(self, work: Awaitable[T], *watching: "asyncio.Task[None] | None") -> T:
        """Wait for `work`; raise `_Stopped` when a stop is asked for first, or what `watching` raise."""
        watched = [task for task in watching if task is not None]
        tasks: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(work),
            asyncio.ensure_future(self._stopping.wait()),
        ]
        try:
            await asyncio.wait([*tasks, *watched], return_when=asyncio.FIRST_COMPLETED)
            for each in watched:
                if each.done():
                    await each
            if tasks[0].done():
                return await tasks[0]  # type: ignore[no-any-return]
            raise _Stopped
        finally:
            await cancel_and_wait(*tasks)

    @staticmethod
    async def _first_of(*work: Awaitable[object], timeout_s: float | None = None) -> None:
        tasks = [asyncio.ensure_future(each) for each in work]
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        await cancel_and_wait(*tasks)

    def _hear_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop_or_hurry)
        loop.add_signal_handler(signal.SIGHUP, self._reloads.ask)

    def _stop_or_hurry(self) -> None:
        (self._hurry if self._stopping.is_set() else self._stopping).set()

    @property
    def settings(self) -> Settings:
        """Those that parts are started with."""
        return self._settings

    @property
    def is_ready(self) -> bool:
        """Whether all parts are up."""
        return self._is_ready.is_set()

    async def exchange(self, settings: Settings) -> str:
        """Have all parts exchanged for some with these settings, one after the other.

        Returns:
            Why it has failed, or nothing. What starts later has the former settings then, unless Ray has
            ended meanwhile and starts again with the new ones.
        """
        former, conductor = self._settings, self._conductor
        assert conductor is not None, "its parts are up"
        self._report("update", "exchanging gateways, API replicas and owners")
        self._use(settings)
        await conductor.say({"do": "roll", "settings": settings.to_environment()})
        update = asyncio.ensure_future(conductor.updated())
        await self._first_of(update, conductor.wait())
        if update.cancelled():
            return "Ray has ended; it starts again with these settings"
        if fault := update.result():
            self._use(former)
        return fault

    def _use(self, settings: Settings) -> None:
        self._settings = settings
        configure_logs(settings, "up")

    def _addresses(self) -> str:
        settings = self._settings
        host = settings.public_host
        scheme = "wss" if settings.ws_tls_certificate else "ws"
        ws = settings.public_ws_url or f"{scheme}://{host}:{settings.ws_port}/api/v1/ws"
        return f"http://{host}:{settings.http_port} {ws}"


def _raise_file_limit() -> None:
    """Let gateways have as many connections as the system allows; children inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _Stopped(Exception):
    """A stop was asked for before the start was over."""
