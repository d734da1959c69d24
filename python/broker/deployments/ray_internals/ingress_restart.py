"""A process of HAProxy that dies is started again at once, by Ray Serve's manager that has started it.

Serve by itself exchanges the manager, after it was found without HAProxy three times, and nobody is answered
over HTTP meanwhile. And it looks twice a second whether a process that it starts has taken over.

Where workers are forked, the manager is changed before (`fork_server`): it waits for the end of each process
that it starts, and looks often while one starts. Where it is made otherwise than this expects it stays as it
is.

Names used: `HAProxyApi._start_and_wait_for_haproxy`, `_wait_for_hap_availability`, `_get_running_pid`,
`_proc`, `start`, `reload`, `disable` and `enable` of `ray.serve._private.haproxy`.
Probe: each is looked for when the fork server starts; a test says when one is gone.
Fall-back: Serve exchanges the manager.
Gain: HTTP is answered again after 1 s, and not after 20; each change of the ingress takes 0.4 s less.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from broker.concurrency.tasks import run_once

_LOOK_S = 0.05
_LOOKS = 40
_CHANGES = ("start", "reload", "disable", "enable")
_CHANGING = "_broker_changing"
_STOP_S = 0.1  # a manager that kills its process notes it within this time

_log = logging.getLogger(__name__)


def hasten() -> None:
    """Change Serve in this process and those that it forks."""
    from ray.serve._private import haproxy

    restart_what_dies(haproxy)
    look_often(haproxy)


def restart_what_dies(haproxy: Any) -> None:
    """Have each process that is started be followed, and started again when it has died."""
    kind: Any = getattr(haproxy, "HAProxyApi", None)
    start_process = getattr(kind, "_start_and_wait_for_haproxy", None)
    if start_process is None or not all(hasattr(kind, name) for name in _CHANGES):
        return
    following: set[asyncio.Task[None]] = set()
    start = kind.start
    for name in _CHANGES:
        setattr(kind, name, _one_at_a_time(getattr(kind, name)))

    async def start_and_follow(self: Any, *arguments: Any, **options: Any) -> Any:
        process = await start_process(self, *arguments, **options)
        task = run_once("ingress", _restart_when_dead(self, process, start))
        following.add(task)
        task.add_done_callback(following.discard)
        return process

    kind._start_and_wait_for_haproxy = start_and_follow


def look_often(haproxy: Any) -> None:
    """Have whoever waits for a process that starts look twenty times a second, and not twice."""
    kind: Any = getattr(haproxy, "HAProxyApi", None)
    wait = getattr(kind, "_wait_for_hap_availability", None)
    if wait is None or not hasattr(kind, "_get_running_pid"):
        return

    async def wait_and_look(self: Any, process: Any, *arguments: Any, **options: Any) -> None:
        for _ in range(_LOOKS):
            if process.returncode is not None or await self._get_running_pid() == process.pid:
                break
            await asyncio.sleep(_LOOK_S)
        await wait(self, process, *arguments, **options)

    kind._wait_for_hap_availability = wait_and_look


def _one_at_a_time(change: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Have a change of an ingress wait for another one.

    Each writes Ray's configuration to the place where a process that starts reads ours. With Ray's it would
    send requests without the secret, and replicas would refuse them.
    """

    async def change_alone(self: Any, *arguments: Any) -> None:
        async with _changing(self):
            await change(self, *arguments)

    return change_alone


def _changing(api: Any) -> asyncio.Lock:
    lock: asyncio.Lock = vars(api).setdefault(_CHANGING, asyncio.Lock())
    return lock


async def _restart_when_dead(api: Any, process: Any, start: Callable[[Any], Awaitable[None]]) -> None:
    status = await process.wait()
    if status == 0:  # another process has taken over, whether or not the manager knows it yet
        return
    await asyncio.sleep(_STOP_S)
    async with _changing(api):
        if getattr(api, "_proc", None) is process:
            _log.error("ingress_died", extra={"status": status})
            await start(api)
