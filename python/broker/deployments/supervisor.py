"""`broker up`: brings the product up on this machine, keeps it up, takes it down.

What it holds itself: the claim to the data directory, the embedded PostgreSQL, and the conductor
(`broker.deployments.conductor`), the process that has Ray and the parts on it. It neither imports Ray nor
serves requests, so little can go wrong here. A part that dies is restarted by its owner: the server by
`EmbeddedPostgres.supervise`, the conductor with the whole of Ray here, everything else by the conductor.

When this process is killed, the conductor sees its input end and stops; what was killed along with it, is
found by its mark at the next start on the same data directory.
"""

import asyncio
import logging
import os
import resource
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import orjson

from broker.deployments import ray_logs
from broker.deployments.data_dir import Claim, claim
from broker.deployments.environment import build_environment
from broker.deployments.ports import require_free
from broker.deployments.preparation import prepare_apart
from broker.deployments.processes import MARK, end_marked
from broker.logs import RAY_SHARE, configure_logs
from broker.settings import Settings, child_environment
from broker.setup_error import SetupError
from broker.storage.embedded.server import EmbeddedPostgres

T = TypeVar("T")

_START_S = 120.0
_FILES = 1_048_576  # the kernel's own limit for a process (fs.nr_open)
_STOP_S = 12.5  # of the fifteen that a stop may take
_RESTART_S = (1.0, 30.0)
_STEADY_S = 60.0  # a conductor that ran for this long is restarted at once

_log = logging.getLogger(__name__)

Report = Callable[[str, str], None]
"""Called with the name of a part that is up, or `warning`, and a detail for people."""


class Supervisor:
    """One run of the product. `run` once."""

    def __init__(self, settings: Settings, report: Report) -> None:
        self._settings = replace(settings, data_dir=settings.data_dir.absolute())
        self._report = report
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._conductor: asyncio.subprocess.Process | None = None
        self._dsn = ""
        self._is_ready = asyncio.Event()
        self._was_ready_once = False
        self._had_ray = False

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
            pruning.cancel()
            await asyncio.gather(pruning, return_exceptions=True)
            await asyncio.to_thread(held.remove_scratch)
            held.release()

    async def _run(self, held: Claim) -> None:
        server = None if self._settings.database_url else self._embedded(held)
        keep: asyncio.Task[None] | None = None
        try:
            # Ray takes seconds to start and needs no database: both at once.
            await self._start_conductor(held)
            ready = asyncio.create_task(self._watch_conductor(held))
            try:
                await self._unless_stopped(self._start_database(server))
                if server is not None:
                    keep = asyncio.create_task(server.supervise())
                await self._unless_stopped(self._hand_over_dsn())
                await self._unless_stopped(asyncio.wait_for(self._is_ready.wait(), _START_S), ready)
                self._report("ready", self._addresses())
                await self._unless_stopped(self._stopping.wait(), ready)
            finally:
                ready.cancel()
                await asyncio.gather(ready, return_exceptions=True)
        except _Stopped:
            pass
        except TimeoutError:
            raise SetupError(
                f"the parts did not come up within {_START_S:g} s; see {held.path / 'log'}"
            ) from None
        finally:
            await self._stop_conductor(held)
            if keep is not None:
                keep.cancel()
                await asyncio.gather(keep, return_exceptions=True)
            if server is not None:
                await server.stop()

    async def _prune_logs(self, held: Claim) -> None:
        """Keep what Ray writes within its share, until cancelled."""
        while True:
            share = self._settings.log_limit_bytes // RAY_SHARE
            await asyncio.to_thread(ray_logs.prune, held.log, share)
            await asyncio.sleep(ray_logs.LOOK_S)

    def _embedded(self, held: Claim) -> EmbeddedPostgres:
        return EmbeddedPostgres(held.postgres, binaries=self._settings.postgres_bin)

    async def _start_database(self, server: EmbeddedPostgres | None) -> None:
        self._dsn = self._settings.database_url if server is None else await server.start()
        prepared = await prepare_apart(self._settings, self._dsn)
        self._report("postgresql", f"{prepared.version}, {'embedded' if server else 'as configured'}")
        for risk in prepared.risks:
            self._report("warning", f"PostgreSQL: {risk}")
            _log.warning("database_not_durable", extra={"cause": risk})
        self._report("schema", ", ".join(prepared.applied) if prepared.applied else "up to date")
        self._report("account", prepared.account)

    async def _start_conductor(self, held: Claim) -> None:
        self._is_ready.clear()
        await asyncio.to_thread(held.make_scratch)
        environment, warning = await asyncio.to_thread(build_environment, self._settings, held.scratch)
        if warning:
            self._report("warning", warning)
        log = held.open_log("stderr")
        try:
            self._conductor = await self._spawn_conductor(held, environment, log)
        finally:
            os.close(log)

    async def _spawn_conductor(
        self, held: Claim, environment: dict[str, str], log: int
    ) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "broker.deployments.conductor",
            str(held.scratch),
            str(held.log),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            env=child_environment(self._settings.to_environment() | environment | {MARK: held.mark}),
        )

    async def _watch_conductor(self, held: Claim) -> None:
        """Pass on what the conductor says, and start it again when it dies after it was ready.

        Raises:
            SetupError: it ended before it was ready.
        """
        loop = asyncio.get_running_loop()
        wait_s = _RESTART_S[0]
        starts = 0
        while True:
            started_s = loop.time()
            starts += 1
            reason = await self._hear_conductor()
            # Ray gives itself half a minute to start, which a busy machine may exceed once.
            if not self._was_ready_once and (self._had_ray or starts > 1):
                raise SetupError(reason or f"the parts ended at their start; see {held.path / 'log'}")
            self._report("warning", f"Ray ended ({reason or 'killed'}); starting it again")
            if loop.time() - started_s < _STEADY_S:
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _RESTART_S[1])
            else:
                wait_s = _RESTART_S[0]
            await asyncio.to_thread(end_marked, held.mark, self._session())
            await self._start_conductor(held)
            if self._dsn:
                await self._hand_over_dsn()

    async def _hear_conductor(self) -> str:
        """Read what the conductor tells until it ends; returns why it failed, if it said so."""
        assert self._conductor is not None and self._conductor.stdout is not None  # noqa: PT018
        reason = ""
        while line := await self._conductor.stdout.readline():
            with suppress(orjson.JSONDecodeError):
                reason = self._heard(orjson.loads(line)) or reason
        await self._conductor.wait()
        return reason

    def _heard(self, message: dict[str, Any]) -> str:
        if "part" in message:
            self._had_ray = True
            self._report(message["part"], message["detail"])
        elif "warning" in message:
            self._report("warning", message["warning"])
        elif message.get("ready"):
            if self._was_ready_once:
                self._report("warning", "all parts are up again")
            self._was_ready_once = True
            self._is_ready.set()
        return str(message.get("failed", ""))

    async def _hand_over_dsn(self) -> None:
        await self._say({"dsn": self._dsn})

    async def _say(self, message: dict[str, str]) -> None:
        if self._conductor is None or self._conductor.stdin is None:
            return
        with suppress(ConnectionError):
            self._conductor.stdin.write(orjson.dumps(message) + b"\n")
            await self._conductor.stdin.drain()

    async def _stop_conductor(self, held: Claim) -> None:
        """Let it drain and end; then end whatever is left of it."""
        if self._conductor is not None and self._conductor.returncode is None:
            if self._is_ready.is_set():
                self._report("stopping", "connections are drained; Ctrl-C again to cut them")
                await self._say({"do": "stop"})
                await self._first_of(self._conductor.wait(), self._hurry.wait(), timeout_s=_STOP_S)
            with suppress(ProcessLookupError):
                self._conductor.kill()
        await asyncio.to_thread(end_marked, held.mark, self._session())
        if self._conductor is not None:
            await self._conductor.wait()

    def _session(self) -> int | None:
        """The session that all processes of the conductor are in: it was started with one of its own."""
        return None if self._conductor is None else self._conductor.pid

    async def _unless_stopped(self, work: Awaitable[T], watched: "asyncio.Task[None] | None" = None) -> T:
        """Wait for `work`; raise `_Stopped` when a stop is asked for first, or what `watched` raises."""
        tasks: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(work),
            asyncio.ensure_future(self._stopping.wait()),
        ]
        try:
            await asyncio.wait([*tasks, watched] if watched else tasks, return_when=asyncio.FIRST_COMPLETED)
            if watched is not None and watched.done():
                await watched
            if tasks[0].done():
                return await tasks[0]  # type: ignore[no-any-return]
            raise _Stopped
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @staticmethod
    async def _first_of(*work: Awaitable[object], timeout_s: float) -> None:
        tasks = [asyncio.ensure_future(each) for each in work]
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _hear_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop_or_hurry)
        loop.add_signal_handler(signal.SIGHUP, self._roll)

    def _stop_or_hurry(self) -> None:
        (self._hurry if self._stopping.is_set() else self._stopping).set()

    def _roll(self) -> None:
        if self._is_ready.is_set() and self._conductor is not None and self._conductor.stdin is not None:
            self._report("update", "exchanging gateways, API replicas and owners")
            self._conductor.stdin.write(b'{"do":"roll"}\n')

    def _addresses(self) -> str:
        settings = self._settings
        host = settings.public_host
        ws = settings.public_ws_url or f"ws://{host}:{settings.ws_port}/api/v1/ws"
        return f"http://{host}:{settings.http_port} {ws}"


def _raise_file_limit() -> None:
    """Let gateways have as many connections as the system allows; children inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _Stopped(Exception):
    """A stop was asked for before the start was over."""
