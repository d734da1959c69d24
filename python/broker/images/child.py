"""The decoder process: it processes untrusted bytes, and may crash without harm to others.

It is forked by `fork_server`. It knows no settings and no secrets, has an empty environment, writes no file,
and its memory and the processor time of a job are capped. What it sends back is data in MessagePack, never
objects: who uses it believes a decoder no more than a stranger.

One job at a time, with its source as an open file, which it maps (`job_messages`). Before it decodes more
pixels than the job allows it says how many, and waits for leave.

From a preview to the crop that follows it keeps the decoded image (`decoded`), beside other jobs, in a part
of its memory, and no longer than it has been idle for a while or hears that nobody wants it any more.
"""

import ctypes
import gc
import resource
import select
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from broker.images.decoded import KeptFrames
from broker.images.decoding import CheckedImage, check_image
from broker.images.describing import describe
from broker.images.errors import UnprocessableImage
from broker.images.forks import DecoderConfig
from broker.images.job_messages import LEAVE, receive_job, send_reply
from broker.images.jobs import Job, JobReply, Planned
from broker.images.rendering import preview, render

_DESCRIPTORS = 64
_KEPT_SHARE = 16  # of the memory, for images whose faces are looked for: 64 MiB of 1 GiB
_OOM_SCORE = "900"  # of 1,000; Ray's own workers have less
_PR_SET_PDEATHSIG = 1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # mallopt(3)
_KEPT_FREE_BYTES = 8 << 20
"""Free memory that malloc keeps for the next image; else one of 12 megapixels causes 1,700 page faults."""


def serve(theirs: socket.socket, config: DecoderConfig) -> None:
    """Work off jobs until the parent closes its end; libvips is open."""
    _enclose(config.memory_bytes)
    kept = KeptFrames(config.memory_bytes // _KEPT_SHARE)
    gc.freeze()  # what is loaded by now stays, and need not be looked at by each collection
    gc.enable()
    try:
        while True:
            if kept and not select.select([theirs], [], [], config.kept_idle_s)[0]:
                kept.forget_all()
            job, data = receive_job(theirs)
            kept.forget(job.unwanted)
            # setitimer(2): time of all threads, in user and kernel mode. Nobody handles the signal.
            signal.setitimer(signal.ITIMER_PROF, config.job_s)
            send_reply(theirs, *_work(theirs, job, data, kept, shrinks_fast=config.shrinks_fast))
            signal.setitimer(signal.ITIMER_PROF, 0)
            del data  # until the next job it would keep a file open that nobody else has any more
    except (EOFError, OSError):
        return  # the parent is gone, or wants us no longer


def end_with_parent() -> None:
    """Have the kernel end this process when its parent ends.

    Parent is the thread that started it. prctl(2): only this informs a busy decoder. Elsewhere than on Linux
    there is no such function, and it ends with its job.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _enclose(memory_bytes: int) -> None:
    """Give up what a decoder has no need of, and be the first that a machine short of memory ends."""
    with suppress(OSError):  # proc_pid_oom_score_adj(5); anybody may raise its own
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    end_with_parent()
    with suppress(AttributeError):  # a C library other than GNU's has no such function
        for parameter in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
            ctypes.CDLL(None).mallopt(parameter, _KEPT_FREE_BYTES)
    for name, bound in (
        (resource.RLIMIT_DATA, memory_bytes),  # setrlimit(2): private memory, which Linux counts since 4.7
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, _DESCRIPTORS),
    ):
        resource.setrlimit(name, (bound, bound))


def _work(
    theirs: socket.socket, job: Job, data: memoryview, kept: KeptFrames, *, shrinks_fast: bool
) -> tuple[JobReply, bytes]:
    """Do a job: its reply and the bytes of its result."""
    try:
        checked = check_image(data, job.limits, shrinks_fast=shrinks_fast)
        if checked.header.pixels > job.unasked_pixels:
            send_reply(theirs, Planned(checked.header.pixels))
            if theirs.recv(len(LEAVE)) != LEAVE:
                raise EOFError
        reply, body = _TASKS[job.task](job, checked, kept)
    except UnprocessableImage as error:
        reply, body = JobReply(error.message, error.log_text), b""
    except MemoryError:
        reply, body = JobReply("the image takes too much memory"), b""
    except Exception as error:  # of a library that stumbles over an image; the process is as good as before
        reply, body = JobReply("the image cannot be processed", repr(error)[:500]), b""
    return msgspec.structs.replace(reply, memory_bytes=_peak_bytes()), body


def _peak_bytes() -> int:
    """The most that this process has held. `getrusage` begins with what its parent held when it forked."""
    try:
        status = Path("/proc/self/status").read_text()  # proc_pid_status(5)
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def _render(job: Job, checked: CheckedImage, kept: KeptFrames) -> tuple[JobReply, bytes]:
    if job.number is not None:
        checked = kept.take(job.number, checked)
    made = render(checked, job.options, job.faces)
    return JobReply(format=made.format, size=made.size), made.body


def _preview(job: Job, checked: CheckedImage, kept: KeptFrames) -> tuple[JobReply, bytes]:
    if checked.header.frames > 1:
        return JobReply(), b""
    if job.number is not None:
        checked = kept.decode(job.number, checked, job.options)
    seen = preview(checked)
    return JobReply(size=seen.size, scale=seen.scale, is_kept=checked.frame is not None), seen.pixels


def _describe(job: Job, checked: CheckedImage, kept: KeptFrames) -> tuple[JobReply, bytes]:
    del job, kept
    return JobReply(description=describe(checked)), b""


_TASKS: dict[str, Callable[[Job, CheckedImage, KeptFrames], tuple[JobReply, bytes]]] = {
    "render": _render,
    "preview": _preview,
    "describe": _describe,
}
