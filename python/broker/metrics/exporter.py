"""Answers a scrape for one process, over a Unix socket in a directory for the product's user alone.

Who asks connects, sends the time of the machine's monotonic clock as it is then, eight bytes big-endian in
nanoseconds, and gets one JSON object and the end of the connection::

    {"name": …, "version": …, "lag_s": …, "samples": [[name, [label, …], value], …]}

A socket is named `<kind>.<pid>`; one that nobody listens on is left by a process that was killed.
"""

import asyncio
import logging
import os
import resource
import socket
import stat
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import orjson

import broker
from broker.clock import Clock
from broker.metrics import catalogue, counts
from broker.metrics.counts import Sample

SENT = struct.Struct(">Q")
DIRECTORY = "metrics"
_ASK_S = 2.0
_BACKLOG = 16

_log = logging.getLogger(__name__)

ReadFigures = Callable[[], Iterable[Sample]]
"""Reads what a part of the process has to tell now; called on the event loop, must not block."""


class Exporter:
    """One process's side. `start` and `close` it on the loop whose lag it tells.

    Args:
        kind: of process, such as `api`.
        name: what this one is for, such as `owner-0`; may be the kind.
        data_dir: of the instance, on this node.
        figures: what is told besides the counts of this process.
    """

    def __init__(
        self, kind: str, name: str, data_dir: Path, clock: Clock, figures: Iterable[ReadFigures] = ()
    ) -> None:
        self._kind = kind
        self._name = name
        self._directory = data_dir / DIRECTORY
        self._clock = clock
        self._figures = list(figures)
        self._began_s = clock.now_ms() / 1000
        self._server: asyncio.Server | None = None

    def add(self, figures: ReadFigures) -> None:
        """Tell this too from now on."""
        self._figures.append(figures)

    async def start(self) -> None:
        """Listen. A process that cannot goes on without: it is not worth an outage."""
        try:
            listener = _listen(self._directory, f"{self._kind}.{os.getpid()}")
        except OSError as error:
            _log.warning("metrics_not_exported", extra={"cause": str(error)})
            return
        self._server = await asyncio.start_unix_server(self._answer, sock=listener)

    async def close(self) -> None:
        """Tell no more. Idempotent."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        with suppress(OSError):
            (self._directory / f"{self._kind}.{os.getpid()}").unlink()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_ASK_S):
                (sent_ns,) = SENT.unpack(await reader.readexactly(SENT.size))
                lag_s = max(0.0, self._clock.monotonic_s() - sent_ns / 1e9)
                writer.write(self._render(lag_s))
                await writer.drain()
        except (OSError, EOFError, TimeoutError) as error:
            _log.debug("scrape_ended", extra={"cause": repr(error)})
        finally:
            writer.close()

    def _render(self, lag_s: float) -> bytes:
        samples = [*self._own(), *counts.samples()]
        for figures in self._figures:
            try:
                samples += figures()
            except Exception:
                _log.exception("figures_failed")  # the others are told nevertheless
        told = {"name": self._name, "version": broker.__version__, "lag_s": lag_s, "samples": samples}
        return orjson.dumps(told, default=list)  # it takes no named tuples by itself

    def _own(self) -> Iterable[Sample]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        yield Sample(catalogue.START.name, (), self._began_s)
        yield Sample(catalogue.CPU.name, (), used.ru_utime + used.ru_stime)
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
        yield Sample(catalogue.RESIDENT.name, (), pages * resource.getpagesize())
        # Counting the entries would take a gateway with 100,000 connections 50 ms.
        open_fds = os.stat("/proc/self/fd").st_size  # noqa: PTH116 - a path of the kernel, not of a file
        if open_fds:
            yield Sample(catalogue.FILES.name, (), open_fds)
        yield Sample(catalogue.FILES_MAX.name, (), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        memory = Path("/proc/meminfo").read_bytes()
        for name, definition in (b"MemTotal:", catalogue.MEMORY), (b"MemAvailable:", catalogue.MEMORY_FREE):
            kilobytes = memory.partition(name)[2].split(maxsplit=1)[0]
            yield Sample(definition.name, (), int(kilobytes) * 1024)
        disk = os.statvfs(self._directory)
        yield Sample(catalogue.DISK_FREE.name, (), disk.f_bavail * disk.f_frsize)


def _listen(directory: Path, name: str) -> socket.socket:
    """A socket that listens under `name`. Raises OSError."""
    make_private(directory)
    path = directory / name
    with suppress(FileNotFoundError):
        path.unlink()  # of a process that had our number
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short_path(directory) as near:
            listener.bind(f"{near}/{name}")
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def make_private(directory: Path) -> None:
    """Make a directory that only we may enter. Raises OSError, also if it belongs to another user."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError(f"{directory} belongs to another user")
    if stat.S_IMODE(status.st_mode) != 0o700:
        directory.chmod(0o700)


@contextmanager
def short_path(directory: Path) -> Iterator[str]:
    """A short path of a directory while the block lasts: a socket's has room for about a hundred bytes."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
