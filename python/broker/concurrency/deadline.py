"""Waiting in a thread for what changes elsewhere without notice: a file, a process, a cluster's state."""

import time
from collections.abc import Iterator


def until_deadline(timeout_s: float, pause_s: float) -> Iterator[None]:
    """One turn for each look, `pause_s` apart, for `timeout_s`; at least one. Blocks between them."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        yield
        if time.monotonic() > deadline_s:
            return
        time.sleep(pause_s)
