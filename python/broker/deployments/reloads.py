"""The reloads of one `broker up`: asked for by a signal, one at a time, told to people and in the record."""

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from broker.deployments.reload_plan import plan_reload
from broker.deployments.reload_record import ReloadRecord, ReloadState
from broker.settings import SettingError, Settings, shadowed_names
from broker.setup_error import SetupError

_log = logging.getLogger(__name__)


class Reloaded(Protocol):
    """What reloads are of: `broker up`, as a reload needs it."""

    @property
    def settings(self) -> Settings:
        """Those that parts are started with."""

    @property
    def is_ready(self) -> bool:
        """Whether all parts are up."""

    async def exchange(self, settings: Settings) -> str:
        """Have all parts exchanged for some with these settings, which are then those of later parts too.

        Called only while the parts are up. Returns why it has failed, or nothing.
        """


class Reloads:
    """Runs what `ask` asks for. `begin` and then `run` in a task, on one event loop."""

    def __init__(
        self, of: Reloaded, load: Callable[[], Settings], report: Callable[[str, str], None], data_dir: Path
    ) -> None:
        """Args: load: reads the settings as they are now; it may block, and raise as `Settings.load`."""
        self._of = of
        self._load = load
        self._report = report
        self._data_dir = data_dir
        self._asked = asyncio.Event()
        self._record = ReloadRecord(os.getpid(), 0, ReloadState.NONE)

    def begin(self) -> None:
        """Put the record in the place of one that an earlier run has left."""
        self._write()

    def ask(self) -> None:
        """Have the settings read again. Those that ask while a reload runs share the next one."""
        self._asked.set()

    async def run(self) -> None:
        """Reload when asked, until cancelled."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            await self._reload(self._record.number + 1)

    async def _reload(self, number: int) -> None:
        try:
            settings, lines = await self._plan()
        except (SettingError, SetupError) as error:
            self._tell(number, ReloadState.REFUSED, f"nothing is changed: {error}")
            return
        self._tell(number, ReloadState.EXCHANGING, *lines)
        if fault := await self._of.exchange(settings):
            self._tell(number, ReloadState.FAILED, f"the exchange failed: {fault}")
        else:
            self._tell(number, ReloadState.DONE, "all parts are exchanged")

    async def _plan(self) -> tuple[Settings, list[str]]:
        """The settings to come, and what people are to know of them. Raises SettingError, SetupError."""
        if not self._of.is_ready:
            raise SetupError("the parts are not up; try again when they are")
        loaded = await asyncio.to_thread(self._load)
        loaded = replace(loaded, data_dir=loaded.data_dir.absolute())
        reload = plan_reload(self._of.settings, loaded)
        shadowed = [f"{name}: the environment wins over the settings file" for name in shadowed_names()]
        return reload.settings, [*reload.lines(), *shadowed]

    def _tell(self, number: int, state: ReloadState, *lines: str) -> None:
        for line in lines:
            self._report("reload", line)
        before = self._record.lines if number == self._record.number else ()
        self._record = ReloadRecord(os.getpid(), number, state, (*before, *lines))
        self._write()

    def _write(self) -> None:
        """What cannot be written, as on a full disk, prevents nothing."""
        try:
            self._record.write(self._data_dir)
        except OSError as error:
            _log.warning("reload_not_recorded", extra={"cause": str(error)})
