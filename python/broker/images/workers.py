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
the running jobs leave room for them. Small images need not wait: room is set aside for one in each process.

All of it belongs to one event loop, which talks to the processes itself: a thread for each job would wait for
the interpreter at each message. Starts and ends of processes block, so they are in threads.
"""

import asyncio
import logging
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from itertools import count

import msgspec

from broker.concurrency.shares import NOBODY, Asker, Shares
from broker.concurrency.turns import Turns
from broker.errors import Unavailable
from broker.images.body_files import BodyFile
from broker.images.errors import DecoderEnded, TooCostly, UnprocessableImage
from broker.images.forks import DecoderConfig, DecoderForks, ForkedDecoder
from broker.images.job_messages import LEAVE, ReplyReader, send_job
from broker.images.jobs import Job, JobReply, Planned

_UNASKED_SHARE = 8
"""The part of the room, one of so many, that is set aside for small images."""
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
        self._unasked_pixels = config.pixels // (_UNASKED_SHARE * config.processes)
        self._room = _Room(config.pixels - self._unasked_pixels * config.processes)
        self._forks = DecoderForks(
            DecoderConfig(config.memory_bytes, config.job_s, config.kept_idle_s, config.shrinks_fast)
        )
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
            job = msgspec.structs.replace(job, unasked_pixels=self._unasked_pixels)
            try:
                async with asyncio.timeout(self._config.wall_s):
                    return await self._run(job, source, kept)
            except TimeoutError:
                raise Unavailable(
                    "the server is too busy to process the image",
                    retry_after_s=_BUSY_S,
                    log_text=f"a decoder was not done within {self._config.wall_s:g} s",
                ) from None

    async def warm(self) -> None:
        """Start a process, unless one waits, so that the next job need not wait for it."""
        with suppress(Unavailable):
            await self._give_back(await self._take(), is_usable=True)

    async def close(self) -> None:
        """End all processes."""
        self._is_closed = True
        started = list(self._started)
        for worker in started:
            worker.kill()  # a job that it has ends with it
        await asyncio.to_thread(self._forks.close)
        for worker in self._idle:
            await self._end(worker)
        self._idle.clear()
        for worker in started:
            await worker.has_ended.wait()

    async def _run(self, job: Job, source: BodyFile, kept: KeptImage | None) -> tuple[JobReply, bytes]:
        try:
            worker = await self._take(None if kept is None else kept.worker)
            return await self._try(worker, job, source, kept)
        except _Crashed as crashed:
            _log.warning("decoder_crashed", extra={"reason": crashed.reason})
        try:
            return await self._try(await self._start(), job, source, kept)
        except _Crashed as crashed:
            raise DecoderEnded("the image cannot be processed", log_text=crashed.reason) from crashed

    async def _try(
        self, worker: "_Worker", job: Job, source: BodyFile, kept: KeptImage | None
    ) -> tuple[JobReply, bytes]:
        """Run a job in a process, which this gives back. Raises _Crashed."""
        is_usable = False
        try:
            reply, body = await worker.run(job, source, self._room)
            is_usable = not worker.is_spent(reply)
            if kept is not None:
                kept.move_to(worker if reply.is_kept else None)
        except (EOFError, OSError, msgspec.DecodeError) as error:
            if self._is_closed:
                raise _stopping() from None
            if await asyncio.to_thread(worker.has_taken_too_long):
                text = f"its process took more than {self._config.job_s:g} s of processor time"
                raise TooCostly(
                    "the image takes too long to process; a smaller size or another format may be possible",
                    log_text=text,
                ) from error
            await asyncio.to_thread(self._forks.exchange, worker.process)
            raise _Crashed(f"its process ended: {error!r}") from error
        finally:
            await self._give_back(worker, is_usable=is_usable)
        if reply.error is not None:
            raise UnprocessableImage(reply.error, log_text=reply.log_text)
        return reply, body

    async def _take(self, wanted: "_Worker | None" = None) -> "_Worker":
        """A process that is free, the one that is wanted if it is, or a new one. Raises Unavailable."""
        if self._is_closed:
            raise _stopping()
        if wanted in self._idle:  # comes next
            self._idle.remove(wanted)
            self._idle.append(wanted)
        while self._idle:
            worker = self._idle.pop()
            if worker.is_alive():
                return worker
            await self._end(worker)  # a machine short of memory has ended it; no image is to blame
        return await self._start()

    async def _start(self) -> "_Worker":
        """A new process. Raises Unavailable."""
        forking = asyncio.get_running_loop().run_in_executor(None, self._forks.fork)
        try:
            process = await asyncio.shield(forking)
        except OSError as error:
            if self._is_closed:
                raise _stopping() from None
            raise Unavailable(
                "no decoder process is available", retry_after_s=1, log_text=repr(error)
            ) from error
        except asyncio.CancelledError:
            forking.add_done_callback(self._keep_forked)
            await asyncio.wait([forking])  # until then the job has its place, and no other is forked for it
            raise
        worker = self._add(process)
        if self._is_closed:
            await self._end(worker)
            raise _stopping()
        return worker

    def _keep_forked(self, forking: "asyncio.Future[ForkedDecoder]") -> None:
        """Keep a process for the next job whose own job was cancelled."""
        if forking.cancelled() or forking.exception() is not None:
            return
        if self._is_closed:
            forking.result().kill()
        else:
            self._idle.append(self._add(forking.result()))

    def _add(self, process: ForkedDecoder) -> "_Worker":
        worker = _Worker(process, self._config)
        self._started.add(worker)
        return worker

    async def _give_back(self, worker: "_Worker", *, is_usable: bool) -> None:
        if is_usable and not self._is_closed:
            # The last one is taken first; who keeps an image had better be free when its crop comes.
            self._idle.insert(0 if worker.is_keeping else len(self._idle), worker)
        else:
            await self._end(worker)

    async def _end(self, worker: "_Worker") -> None:
        """End a process. Where this is cancelled that goes on in its thread."""
        worker.kill()
        ending = asyncio.get_running_loop().run_in_executor(None, worker.process.end)
        ending.add_done_callback(lambda _: self._note_end(worker))
        await asyncio.shield(ending)

    def _note_end(self, worker: "_Worker") -> None:
        self._started.discard(worker)
        worker.has_ended.set()


class _Worker:
    """One process and the connection to it, for one job at a time."""

    def __init__(self, process: ForkedDecoder, config: WorkerConfig) -> None:
        self.process = process
        self.has_ended = asyncio.Event()
        self.is_keeping = False  # the image of its last job
        self._config = config
        self._jobs = 0
        self._unwanted: list[int] = []  # numbers of images that it may keep and nobody will ask for
        self._socket = process.connection
        self._socket.setblocking(False)

    async def run(self, job: Job, source: BodyFile, room: "_Room") -> tuple[JobReply, bytes]:
        """The reply and the result. Where this is cancelled the process is of no use any more.

        Raises:
            EOFError, OSError, DecodeError: it died, was ended, or says what it may not.
        """
        self._jobs += 1
        unwanted, self._unwanted = tuple(self._unwanted), []
        left = send_job(self._socket, msgspec.structs.replace(job, unwanted=unwanted), source)
        if left:
            await asyncio.get_running_loop().sock_sendall(self._socket, left)
        said, body = await self._receive()
        if isinstance(said, Planned):
            async with room.taken(said.pixels):
                await asyncio.get_running_loop().sock_sendall(self._socket, LEAVE)
                said, body = await self._receive()
        if isinstance(said, Planned):
            raise OSError("leave was asked for twice")
        self.is_keeping = said.is_kept
        return said, body

    def forget(self, number: int) -> None:
        """Have the process keep this image no longer than until its next job."""
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

    async def _receive(self) -> tuple[Planned | JobReply, bytes]:
        loop, reader = asyncio.get_running_loop(), ReplyReader()
        while True:
            said = reader.feed(await loop.sock_recv(self._socket, reader.wanted_bytes))
            if said is not None:
                return said


class _Crashed(Exception):
    """A process ended in the middle of a job, or said what it may not; `reason` is for operators."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _Room:
    """So many pixels at a time, given in the order of asking."""

    def __init__(self, pixels: int) -> None:
        self._size = self._free = pixels
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def taken(self, pixels: int) -> AsyncIterator[None]:
        """Hold room for `pixels`, or all of it for a larger image. Safe to cancel."""
        pixels = min(max(pixels, 0), self._size)
        given = asyncio.get_running_loop().create_future()
        self._queue.append((pixels, given))
        self._give()
        try:
            await given
        except asyncio.CancelledError:
            if given.cancelled():
                self._give()  # to those behind
            else:
                self._take_back(pixels)
            raise
        try:
            yield
        finally:
            self._take_back(pixels)

    def _take_back(self, pixels: int) -> None:
        self._free += pixels
        self._give()

    def _give(self) -> None:
        while self._queue and (self._queue[0][0] <= self._free or self._queue[0][1].cancelled()):
            pixels, given = self._queue.popleft()
            if not given.cancelled():
                self._free -= pixels
                given.set_result(None)


def _stopping() -> Unavailable:
    return Unavailable("this process is shutting down", retry_after_s=1)
