"""A process whose kernel refuses a system call of `io_uring`; it writes what the product makes of that: JSON.

`python -m tests.native.kernel CALL ERROR` refuses the call before the native module is loaded, so in all of
its threads; `nothing 0` refuses none. `later 0` takes the ring from a gateway that has sent by it.
"""

import asyncio
import ctypes
import json
import os
import struct
import sys
from pathlib import Path
from typing import Any

SETUP, ENTER, REGISTER = 425, 426, 427  # the same on every architecture
CALLS = {"io_uring_setup": SETUP, "io_uring_enter": ENTER, "io_uring_register": REGISTER}
_RING = "anon_inode:[io_uring]"
_NO_NEW_PRIVS, _SECCOMP, _FILTER = 38, 22, 2
_LOAD, _EQUALS, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_libc = ctypes.CDLL(None, use_errno=True)


def has_rings() -> bool:
    """Whether this process may open a ring, by the system call alone."""
    fd: int = _libc.syscall(SETUP, 1, ctypes.create_string_buffer(120))
    if fd >= 0:
        os.close(fd)
    return fd >= 0


def refuse(call: int, error: int) -> None:
    """Have the kernel answer a call with `error` from now on; with 0 it succeeds and does nothing."""
    steps = [
        (_LOAD, 0, 0, 0),
        (_EQUALS, 0, 1, call),
        (_RETURN, 0, 0, _ERROR | error),
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
    if _libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) or _libc.prctl(_SECCOMP, _FILTER, program):
        raise OSError(ctypes.get_errno(), "the filter is refused")


def lose_rings() -> int:
    """Put something else under the number of every ring of this process; how many there were."""
    rings = [int(entry.name) for entry in Path("/proc/self/fd").iterdir() if _is_ring(entry)]
    with Path(os.devnull).open("rb") as other:
        for ring in rings:
            os.dup2(other.fileno(), ring)
    return len(rings)


def _is_ring(entry: Path) -> bool:
    try:
        return str(entry.readlink()) == _RING
    except OSError:  # the descriptor of the listing itself
        return False


def examine(name: str, error: int) -> dict[str, Any]:
    """What `broker doctor` says, and what two viewers of a gateway get before its ring is lost and after."""
    if name in CALLS:
        refuse(CALLS[name], error)
    # Only now, so that no thread of theirs is without the filter.
    from broker.deployments import doctor
    from broker.settings import Settings
    from tests.native.harness import PROGRAM, Gateway, push

    (finding,) = asyncio.run(doctor.run_checks(Settings.load({}), ("io_uring",)))
    gateway = Gateway(send="auto", loops=1)
    try:
        gateway.server.open_log(PROGRAM, "e1", 0, True)
        with gateway.client() as one, gateway.client() as two:
            one.subscribe()
            two.subscribe()
            gateway.server.append(PROGRAM, [push(1), push(2)])
            seqs = [one.seqs(2), two.seqs(2)]
            lost = lose_rings() if name == "later" else 0
            gateway.server.append(PROGRAM, [push(3), push(4)])
            seqs += [one.seqs(2), two.seqs(2)]
        stats = gateway.server.stats()
    finally:
        gateway.server.stop()
    return {
        "verdict": finding.verdict.name,
        "detail": finding.detail,
        "seqs": seqs,
        "lost": lost,
        "send": stats["send"],
        "reason": stats["send_reason"],
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(examine(sys.argv[1], int(sys.argv[2]))))
