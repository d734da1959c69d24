"""The decoder processes, seen from the process that uses them.

Each takes one job at a time, so a crash concerns one image and no other. That image is tried once more,
in a new process: the one before may have been damaged by an earlier image, or ended by a machine short of
memory. An image that crashes the new one, too, is to blame. They are forked (`forks`) when they are first
needed. A process whose job takes too much processor time is ended, and the image with these options is to
blame at once. One that takes too long by the clock, or whose job is cancelled, is ended too, whatever it does
or waits for; but a machine that has no time for it says nothing of the image. Each is exchanged after so
many jobs or so much memory, since decoders leak and heaps fragment.

From a preview to the crop that follows, its process keeps the decoded image, and meanwhile takes other jobs
if no other process is free. If it is busy when the crop comes, or has ended, another one decodes the source.

Jobs of accounts and addresses take turns (`turns`), and beyond their share of those that may wait callers
are refused at once. Admission goes by pixels: a process says how many it is going to decode, and waits until
the running jobs leave room for them.
"""

import asyncio
import logging
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection

import msgspec

from broker.concurrency.shares import NOBODY, Asker, Shares
from broker.concurrency.turns import Turns
from broker.errors import Unavailable
from broker.images.body_files import BodyFile, send_body
from broker.images.errors import DecoderEnded, TooCostly, UnprocessableImage
from broker.images.forks import DecoderConfig, DecoderForks, ForkedDecoder
from broker.images.jobs import MAX_RESULT_BYTES, Job, JobReply, Planned, receive_result

_MESSAGE_BYTES = 64 << 10
_BUSY_S = 10  # until a machine that gives decoders no time is asked again
_EXIT_S = 1.0  # from the end of a connection to that of its process

_log = logging.getLogger(__name__)


def _refuse_nothing() -> None:
    return


@dataclass(slots=True)
class KeptImage:
    """Where a decoded image is between two jobs of a request, if it is anywhere.

    Attributes:
        number: that its jobs bear.
        worker: whose process keeps it; only that one can use it, and only if it is free then.
        is_over: whether the request has ended.
    """

    number: int
    worker: "_Worker | None" = None
    is_over: bool = False

    def move_to(self, worker: "_Worker | None") -> None:
        """Say whose process keeps it after a job. Any other one forgets it with the next job that it gets."""
        if self.worker is not None and self.worker is not worker:
            self.worker.forget(self.number)
        self.worker = worker
        if self.is_over and worker is not None:
            worker.forget(self.number)

    def end(self) -> None:
        """Have nobody keep it any more."""
        self.is_over = True
        self.move_to(None)


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """How many processes, and what each may take.

    Attributes:
        processes: at most; they start when they are needed.
        waiting: jobs that wait for one; an account that has more than its share of them is refused with 503.
        memory_bytes: private memory of each, over which its job fails.
        job_s: processor time that a job may take.
        wall_s: time of a job by the clock, with its waiting for room; a request's, since nobody waits longer.
        pixels: that may be decoded at the same time; a larger image is decoded alone.
        jobs: after which a process is exchanged, or when it has held over `recycle_bytes`.
        shrinks_fast: whether a JPEG's decoder does as much of the shrinking as it can.
        kept_idle_s: for which an idle process keeps decoded images; a detector is waited for half as long.
    """

    processes: int = 3
    waiting: int = 256
    memory_bytes: int = 1 << 30
    job_s: float = 10.0
    wall_s: float = 30.0
    pixels: int = 100_000_000
    jobs: int = 1_000
    recycle_bytes: int = 512 << 20
    kept_idle_s: float = 10.0
    shrinks_fast: bool = False


class Workers:
    """A pool of processes that decode. `close` ends them; running jobs fail with `Unavailable`."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._threads = ThreadPoolExecutor(config.processes, thread_name_prefix="images")
        self._room = _Room(config.pixels)
        self._forks = DecoderForks(
            DecoderConfig(config.memory_bytes, config.job_s, config.kept_idle_s, config.shrinks_fast)
        )
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._started: set[_Worker] = set()
        self._is_closed = False
        waiting = Shares(config.waiting, "too many images wait to be processed")
        self._turns = Turns(config.processes, waiting)
        self._numbers = count(1)

    @contextmanager
    def keeping_image(self) -> Iterator[KeptImage]:
        """For the jobs of one request, one after the other; once it ends no process keeps the image."""
        kept = KeptImage(next(self._numbers))
        try:
            yield kept
        finally:
            kept.end()

    async def run(
        self,
        job: Job,
        source: BodyFile,
        asker: Asker = NOBODY,
        kept: KeptImage | None = None,
        check: Callable[[], None] = _refuse_nothing,
    ) -> tuple[JobReply, bytes]:
        """The reply to a job and the bytes of its result.

        Safe to cancel: a job that has not begun never does, and one that runs ends with its process.

        Args:
            kept: whose number the job bears. The process that has the image gets the job if it is free.
            check: called when its turn has come; raises to refuse it, for what has become known meanwhile.

        Raises:
            DecoderEnded: the image crashed two processes.
            TooCostly: it takes too much processor time with these options.
            UnprocessableImage: it is broken or over a limit.
            Unavailable: too many jobs wait, no process can be started or none gets time, or the pool closes.
        """
        async with self._turns.held(asker):
            if self._is_closed:
                raise _stopping()
            check()
            return await self._run_in_time(job, source, kept)

    async def warm(self) -> None:
        """Start a process, unless one waits, so that the next job need not wait for it."""
        with suppress(Unavailable):
            await asyncio.get_running_loop().run_in_executor(self._threads, self._warm)

    async def close(self) -> None:
        """End all processes."""
        with self._lock:
            self._is_closed = True
            started = list(self._started)
        for worker in started:
            worker.kill()
        await asyncio.to_thread(self._forks.close)
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)
        for worker in self._idle:
            worker.end()

    async def _run_in_time(
        self, job: Job, source: BodyFile, kept: KeptImage | None
    ) -> tuple[JobReply, bytes]:
        """Run a job in a thread. It has ended, and with it its place is free, when this returns."""
        loop = asyncio.get_running_loop()
        cancellation = _Cancellation(self._room)
        done = loop.run_in_executor(self._threads, self._run, job, source, cancellation, kept)
        timer = loop.call_later(self._config.wall_s, cancellation.end)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            cancellation.end()
            await asyncio.gather(done, return_exceptions=True)
            raise
        finally:
            timer.cancel()
            del done  # else an error, whose traceback has this frame, would hold itself and the image

    def _run(
        self, job: Job, source: BodyFile, cancellation: "_Cancellation", kept: KeptImage | None
    ) -> tuple[JobReply, bytes]:
        try:
            return self._try(
                self._take(None if kept is None else kept.worker), job, source, cancellation, kept
            )
        except _Crashed as crashed:
            _log.warning("decoder_crashed", extra={"reason": crashed.reason})
        try:
            return self._try(self._start(), job, source, cancellation, kept)
        except _Crashed as crashed:
            raise DecoderEnded("the image cannot be processed", log_text=crashed.reason) from crashed

    def _try(
        self,
        worker: "_Worker",
        job: Job,
        source: BodyFile,
        cancellation: "_Cancellation",
        kept: KeptImage | None,
    ) -> tuple[JobReply, bytes]:
        """Run a job in a process, which this gives back. Raises _Crashed."""
        is_usable = False
        try:
            with cancellation.holding(worker):
                reply, body = worker.run(job, source, self._room, cancellation)
            is_usable = not cancellation.is_ended and not worker.is_spent(reply)
            if kept is not None:
                kept.move_to(worker if reply.is_kept else None)
        except (EOFError, OSError, msgspec.DecodeError) as error:
            if self._is_closed:
                raise _stopping() from None
            if cancellation.is_ended:
                raise Unavailable(
                    "the server is too busy to process the image",
                    retry_after_s=_BUSY_S,
                    log_text=f"a decoder was not done within {self._config.wall_s:g} s",
                ) from error
            if worker.has_taken_too_long():
                text = f"its process took more than {self._config.job_s:g} s of processor time"
                raise TooCostly(
                    "the image takes too long to process; a smaller size or another format may be possible",
                    log_text=text,
                ) from error
            self._forks.exchange(worker.process)
            raise _Crashed(f"its process ended: {error!r}") from error
        finally:
            self._give_back(worker, is_usable=is_usable)
        if reply.error is not None:
            raise UnprocessableImage(reply.error, log_text=reply.log_text)
        return reply, body

    def _warm(self) -> None:
        self._give_back(self._take(), is_usable=True)

    def _take(self, wanted: "_Worker | None" = None) -> "_Worker":
        """A process that is free, the one that is wanted if it is, or a new one. Raises Unavailable."""
        with self._lock:
            if self._is_closed:
                raise _stopping()
            if wanted in self._idle:  # comes next
                self._idle.remove(wanted)
                self._idle.append(wanted)
            while self._idle:
                worker = self._idle.pop()
                if worker.is_alive():
                    return worker
                # A machine short of memory has ended it; no image is to blame.
                self._started.discard(worker)
                worker.end()
        return self._start()

    def _start(self) -> "_Worker":
        """A new process. Raises Unavailable."""
        try:
            worker = _Worker(self._forks.fork(), self._config)
        except OSError as error:
            raise Unavailable(
                "no decoder process is available", retry_after_s=1, log_text=repr(error)
            ) from error
        with self._lock:
            if not self._is_closed:
                self._started.add(worker)
                return worker
        worker.end()
        raise _stopping()

    def _give_back(self, worker: "_Worker", *, is_usable: bool) -> None:
        with self._lock:
            if is_usable and not self._is_closed:
                # The last one is taken first; who keeps an image had better be free when its crop comes.
                self._idle.insert(0 if worker.is_keeping else len(self._idle), worker)
                return
            self._started.discard(worker)
        worker.end()


class _Worker:
    """One process and the connection to it. Used by one thread at a time; `kill` by any."""

    def __init__(self, process: ForkedDecoder, config: WorkerConfig) -> None:
        self.process = process
        self._config = config
        self._jobs = 0
        self.is_keeping = False  # the image of its last job
        self._unwanted: deque[int] = deque()  # numbers of images that it may keep and nobody will ask for
        self._socket = process.connection
        self._connection: Connection[bytes, bytes] = Connection(os.dup(self._socket.fileno()))

    def run(
        self, job: Job, source: BodyFile, room: "_Room", cancellation: "_Cancellation"
    ) -> tuple[JobReply, bytes]:
        """The reply and the result. The process may hang at any line; then `kill` is what goes on.

        Raises:
            EOFError, OSError, DecodeError: it died, was ended, or says what it may not.
        """
        self._jobs += 1
        unwanted = tuple(self._unwanted.popleft() for _ in range(len(self._unwanted)))
        self._connection.send_bytes(msgspec.msgpack.encode(msgspec.structs.replace(job, unwanted=unwanted)))
        send_body(self._socket, source)
        said = msgspec.msgpack.decode(self._receive(), type=Planned | JobReply)
        if isinstance(said, JobReply):
            return said, receive_result(self._socket, 0)
        with room.taken(said.pixels, cancellation):
            self._connection.send_bytes(b"")
            reply = msgspec.msgpack.decode(self._receive(), type=JobReply)
            self.is_keeping = reply.is_kept
            return reply, receive_result(self._socket, MAX_RESULT_BYTES)

    def forget(self, number: int) -> None:
        """Have the process keep this image no longer than until its next job. For any thread."""
        self._unwanted.append(number)

    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self.process.is_alive()

    def is_spent(self, reply: JobReply) -> bool:
        """Whether the process should be exchanged."""
        return self._jobs >= self._config.jobs or reply.memory_bytes > self._config.recycle_bytes

    def has_taken_too_long(self) -> bool:
        """Whether the process, whose connection broke, was ended for its processor time. Blocks a while."""
        return self.process.wait(_EXIT_S) == -signal.SIGPROF

    def kill(self) -> None:
        """End the process at once; whoever waits for it gets EOFError."""
        self.process.kill()

    def end(self) -> None:
        """End the process and forget it."""
        self._connection.close()
        self.process.end()

    def _receive(self) -> bytes:
        return self._connection.recv_bytes(_MESSAGE_BYTES)


class _Crashed(Exception):
    """A process ended in the middle of a job, or said what it may not; `reason` is for operators."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _Room:
    """So many pixels at a time, given in the order of asking."""

    def __init__(self, pixels: int) -> None:
        self._size = self._free = pixels
        self._queue: deque[object] = deque()
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, pixels: int, cancellation: "_Cancellation") -> Iterator[None]:
        """Hold room for `pixels`, or all of it for a larger image. Raises TimeoutError once it is ended."""
        pixels, me = min(max(pixels, 0), self._size), object()
        with self._changed:
            self._queue.append(me)
            self._changed.wait_for(
                lambda: cancellation.is_ended or (self._queue[0] is me and self._free >= pixels)
            )
            self._queue.remove(me)
            self._changed.notify_all()
            if cancellation.is_ended:
                raise TimeoutError
            self._free -= pixels
        try:
            yield
        finally:
            with self._changed:
                self._free += pixels
                self._changed.notify_all()

    def wake(self) -> None:
        """Let all who wait look again."""
        with self._changed:
            self._changed.notify_all()


class _Cancellation:
    """What ends a job from outside, once. Safe for any threads."""

    def __init__(self, room: _Room) -> None:
        self._room = room
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        self.is_ended = False

    @contextmanager
    def holding(self, worker: _Worker) -> Iterator[None]:
        """Meanwhile `end` ends this process, which is no other job's yet. Raises TimeoutError after `end`."""
        with self._lock:
            if self.is_ended:
                raise TimeoutError
            self._worker = worker
        try:
            yield
        finally:
            with self._lock:
                self._worker = None

    def end(self) -> None:
        """End the process that has the job, and its waiting for room."""
        with self._lock:
            self.is_ended = True
            if self._worker is not None:
                self._worker.kill()
        self._room.wake()


def _stopping() -> Unavailable:
    return Unavailable("this process is shutting down", retry_after_s=1)
