"""Work that is done again and again while a gateway runs."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from broker.errors import BrokerError
from broker.tasks import keep_running

_log = logging.getLogger(__name__)


class Periodic:
    """Runs `work` every `every_s` seconds, beginning one interval after `start`.

    A failure is logged and the next round comes as usual. Rounds never overlap.
    """

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
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self._work()
            except BrokerError as error:
                _log.warning("round_failed", extra={"work": self._name, "cause": error.message})
            except Exception:
                _log.exception("round_failed", extra={"work": self._name})
