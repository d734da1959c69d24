"""Work that is repeated at a fixed interval."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from broker.concurrency.tasks import cancel_and_wait, keep_running
from broker.errors import BrokerError

_log = logging.getLogger(__name__)


async def repeat(name: str, every_s: float, work: Callable[[], Awaitable[object]]) -> None:
    """Run `work` every `every_s` seconds, for the first time after one interval, until cancelled.

    The interval is from the end of a round to the beginning of the next, so rounds never overlap. A failure
    is logged, and the next round comes as usual.
    """
    while True:
        await asyncio.sleep(every_s)
        try:
            await work()
        except BrokerError as error:
            _log.warning("round_failed", extra={"work": name, "cause": error.log_text or error.message})
        except Exception:
            _log.exception("round_failed", extra={"work": name})


class Periodic:
    """A task that does `repeat`. `start` and `stop` it on one event loop."""

    def __init__(self, name: str, every_s: float, work: Callable[[], Awaitable[object]]) -> None:
        self._name = name
        self._every_s = every_s
        self._work = work
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, on the running loop."""
        self._task = keep_running(self._name, self._run)

    async def stop(self) -> None:
        """Cancel the round that runs, and end. Idempotent."""
        await cancel_and_wait(self._task)
        self._task = None

    async def _run(self) -> None:
        await repeat(self._name, self._every_s, self._work)
