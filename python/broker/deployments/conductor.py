"""The process that starts the parts on Ray and keeps them running; `broker up` starts it and watches it.

It is a process of its own because Ray ends the driver of a cluster whose head has died: `broker up` survives
that and starts another. Ray's own processes are its children and end with it.

It reads lines of JSON from standard input and writes some to standard output:

* in: `{"dsn": …}` once, when the database is ready; `{"do": "roll"}`; `{"do": "stop"}`. The end of the input
  means that `broker up` has died, and stops everything.
* out: `{"part": …, "detail": …}` when a part is up; `{"warning": …}`; `{"ready": true}`; `{"failed": …}`
  before it gives up.
"""

import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from broker.deployments import gateways, ray_cluster, serve_app
from broker.deployments.logs import configure_logs
from broker.owners.pool import start_owners, stop_owners
from broker.settings import Settings

_STOP_S = 11.0  # for everything; `broker up` has four more
_DRAIN_LIMIT_S = 6.0

_log = logging.getLogger(__name__)


def main() -> None:
    """Run until told to stop. Arguments: the instance's directory for sockets."""
    # Only `broker up` decides; a Ctrl-C in its terminal reaches it alone.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = Settings.load()
    configure_logs(settings)
    local = None
    try:
        if not settings.ray_address:
            local = ray_cluster.start_local(Path(sys.argv[1]))
        asyncio.run(Conductor(settings, local).run())
    except Exception as error:
        _log.exception("conductor_failed")
        _tell({"failed": _one_line(error)})
        sys.exit(1)
    finally:
        if local is not None:
            local.stop()


class Conductor:
    """Starts the parts in their order, then waits for commands."""

    def __init__(self, settings: Settings, local: ray_cluster.LocalRay | None) -> None:
        self._settings = settings
        self._local = local
        self._stopping = asyncio.Event()
        self._dsn: asyncio.Future[str] | None = None
        self._rolls = asyncio.Semaphore(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._gateways: gateways.Gateways | None = None
        self._owners_started = False

    async def run(self) -> None:
        """Return when everything has been stopped. Raises what made a part fail to start."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stopping.set)
        self._dsn = loop.create_future()
        commands = asyncio.create_task(self._read_commands())
        start = asyncio.create_task(self._start())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({start, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if start.done():
                await start
                _tell({"ready": True})
                await stopping
        finally:
            for task in (start, stopping, commands, *self._tasks):
                task.cancel()
            await asyncio.gather(start, stopping, commands, *self._tasks, return_exceptions=True)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop(), _STOP_S)

    async def _start(self) -> None:
        assert self._dsn is not None
        await asyncio.to_thread(self._connect)
        _tell({"part": "ray", "detail": self._settings.ray_address or "local"})
        dsn = await self._dsn
        joined = self._local is None
        self._owners_started = True
        self._gateways = gateways.Gateways(self._settings, dsn, outlive_driver=joined)
        await asyncio.gather(
            self._part(
                "owners",
                lambda: start_owners(self._settings, dsn, detached=joined),
                lambda: f"{self._settings.owners} of them",
            ),
            self._part("gateways", self._gateways.start, self._gateway_detail),
            self._part("api", self._start_api(dsn), lambda: f"port {self._settings.http_port}"),
        )
        self._keep(self._gateways.run())

    async def _part(self, name: str, start: Callable[[], Awaitable[None]], detail: Callable[[], str]) -> None:
        await start()
        _tell({"part": name, "detail": detail()})

    def _start_api(self, dsn: str) -> Callable[[], Awaitable[None]]:
        return lambda: asyncio.to_thread(serve_app.run_application, self._settings, dsn)

    def _gateway_detail(self) -> str:
        assert self._gateways is not None
        return f"port {self._settings.ws_port}, {self._gateways.count} of them"

    def _connect(self) -> None:
        if self._local is not None:
            ray_cluster.connect_local(self._local)
        else:
            ray_cluster.join(self._settings.ray_address)

    async def _read_commands(self) -> None:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
        while line := await reader.readline():
            command: dict[str, Any] = orjson.loads(line)
            if "dsn" in command and self._dsn is not None and not self._dsn.done():
                self._dsn.set_result(command["dsn"])
            elif command.get("do") == "roll":
                self._keep(self._roll())
            elif command.get("do") == "stop":
                break
        self._stopping.set()

    async def _roll(self) -> None:
        """Exchange gateways and replicas; a second request waits for the first."""
        if self._gateways is None or self._dsn is None:
            return
        async with self._rolls:
            try:
                await self._gateways.roll()
                await self._start_api(await self._dsn)()
            except Exception as error:
                _log.exception("roll_failed")
                _tell({"warning": f"the update failed: {_one_line(error)}"})
            else:
                _tell({"part": "update", "detail": "gateways and API replicas exchanged"})

    def _keep(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _stop(self) -> None:
        """Let clients and running requests go, then owners, so that nothing accepted is cut off."""
        over_s = min(self._settings.drain_s, _DRAIN_LIMIT_S)
        doors: list[Awaitable[None]] = [asyncio.to_thread(serve_app.stop_application)]
        if self._gateways is not None:
            doors.append(self._gateways.drain(over_s))
        await asyncio.gather(*doors, return_exceptions=True)
        if self._owners_started:
            await stop_owners(self._settings)


def _tell(message: dict[str, object]) -> None:
    sys.stdout.buffer.write(orjson.dumps(message) + b"\n")
    sys.stdout.buffer.flush()


def _one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


if __name__ == "__main__":
    main()
