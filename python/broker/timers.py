"""The slack of kernel timers of this process. Linux only; elsewhere nothing changes.

A processor that sleeps has to be woken for each timer, which on a virtual machine costs more than most timers
do, and Ray's processes have many that do nothing. Linux puts timers together that may be late: those of
`epoll_wait`, `poll`, `futex` and `nanosleep`, by as much as the thread's timer slack (prctl(2),
PR_SET_TIMERSLACK). A timer that does not come alone finds the processor awake.

Timer file descriptors (timerfd_create(2)) know no slack. Ray's event loops are Boost.Asio's, which do without
them on a kernel that has none; a filter of system calls (seccomp(2)) makes it one for Ray.
"""

import ctypes
import errno
import platform
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager

EXACT_S = 50e-6
"""How late Linux lets the timers of ordinary threads be by default, seconds."""

_PR_SET_SECCOMP = 22
_PR_SET_TIMERSLACK = 29
_PR_GET_TIMERSLACK = 30
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2

# Machine → AUDIT_ARCH and the number of timerfd_create.
_TIMERFD_CREATE = {"x86_64": (0xC000003E, 283), "aarch64": (0xC00000B7, 85)}
# Instructions of a filter (linux/bpf_common.h, linux/seccomp.h), and offsets in its `struct seccomp_data`.
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_CALL_AT, _ARCH_AT = 0, 4
_ALLOW, _FAIL_WITH = 0x7FFF0000, 0x00050000


def allow_late(by_s: float) -> None:
    """Let timers of this thread be late by `by_s`, and those of threads and processes that it starts."""
    if sys.platform == "linux":
        _prctl(_PR_SET_TIMERSLACK, round(by_s * 1e9))


@contextmanager
def late(by_s: float) -> Iterator[None]:
    """`allow_late` for what is started inside; this thread is as exact as before afterwards."""
    before_ns = _prctl(_PR_GET_TIMERSLACK) if sys.platform == "linux" else 0
    allow_late(by_s)
    try:
        yield
    finally:
        allow_late(max(0, before_ns) / 1e9)  # 0, where the kernel did not say: what the thread was born with


def deny_timer_descriptors() -> None:
    """Have timerfd_create(2) fail with ENOSYS in this thread and in all that it starts; for good.

    None of them can become more than it is any more either (PR_SET_NO_NEW_PRIVS), which Linux asks of whoever
    is not root. Where the kernel has no such filters, or on another processor, nothing changes.
    """
    known = _TIMERFD_CREATE.get(platform.machine())
    if sys.platform != "linux" or known is None:
        return
    arch, number = known
    steps = (
        (_LOAD, 0, 0, _ARCH_AT),
        (_JUMP_IF_EQUAL, 0, 3, arch),
        (_LOAD, 0, 0, _CALL_AT),
        (_JUMP_IF_EQUAL, 0, 1, number),
        (_RETURN, 0, 0, _FAIL_WITH | errno.ENOSYS),
        (_RETURN, 0, 0, _ALLOW),
    )
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("HP", len(steps), ctypes.addressof(code)))
    if _prctl(_PR_SET_NO_NEW_PRIVS, 1) == 0:
        _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(program))


def _prctl(option: int, *values: int) -> int:
    """prctl(2). A kernel that refuses leaves timers as they are, which costs processor time and no more."""
    words = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    return int(ctypes.CDLL(None).prctl(ctypes.c_int(option), *words))
