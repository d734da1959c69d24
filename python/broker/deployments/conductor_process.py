"""The conductor's process, seen from `broker up`: start, messages, end."""

import asyncio
import os
import secrets
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from broker.deployments.data_dir import Claim
from broker.deployments.environment import build_environment
from broker.deployments.processes import CONDUCTOR_MARK, MARK, end_marked
from broker.settings import Settings, child_environment

TellPart = Callable[[str, str], None]
"""Called with the name of a part that is up, or `warning`, and a detail for people."""

_PROGRAM = "broker.deployments.conductor"
_SUCCEEDS = "--succeeds"  # `broker.deployments.conductor`'s, which this process must not import


class ConductorProcess:
    """One conductor with all that it starts. `start` once; then the others at any time.

    Attributes:
        had_ray: whether it has started Ray.
        is_ready: set when all parts are up.
        is_damaged: set when a process of Ray's own has ended; it serves, but replaces nothing any more.
    """

    def __init__(self, settings: Settings, held: Claim, scratch: Path, report: TellPart) -> None:
        """Nothing is started yet. `scratch` is for its sockets alone, and exists."""
        self.had_ray = False
        self.is_ready = asyncio.Event()
        self.is_damaged = asyncio.Event()
        self.scratch = scratch
        self._settings = settings
        self._held = held
        self._report = report
        self._mark = secrets.token_hex(16)
        self._process: asyncio.subprocess.Process | None = None
        self._hearing: asyncio.Task[str] | None = None
        self._updates: asyncio.Queue[str] = asyncio.Queue()  # an answer to each update that was asked for

    async def start(self, *, succeeds: bool = False) -> None:
        """Start it.

        Args:
            succeeds: whether another one still serves, which this one is to take over from.
        """
        environment, warning = await asyncio.to_thread(build_environment, self._settings, self.scratch)
        if warning:
            self._report("warning", warning)
        log = self._held.open_log("stderr")
        try:
            self._process = await self._spawn(environment, log, succeeds=succeeds)
        finally:
            os.close(log)
        self._hearing = asyncio.create_task(self._hear(self._process), name="conductor")

    async def wait(self) -> str:
        """Return when it has ended; why it failed, if it said so. Safe to cancel, and to call repeatedly."""
        assert self._hearing is not None, "it was started"
        return await asyncio.shield(self._hearing)

    async def say(self, message: Mapping[str, object]) -> None:
        """Tell it something; one that has gone hears nothing."""
        if self._process is None or self._process.stdin is None:
            return
        with suppress(ConnectionError):
            self._process.stdin.write(orjson.dumps(message) + b"\n")
            await self._process.stdin.drain()

    async def updated(self) -> str:
        """Return when the update that was asked for last is over; why it failed, or nothing."""
        return await self._updates.get()

    @property
    def is_running(self) -> bool:
        """Whether its process lives."""
        return self._process is not None and self._process.returncode is None

    async def kill(self) -> str:
        """End it with everything that it has started; why it failed, if it said so. Idempotent."""
        if self._process is None:
            return ""
        with suppress(ProcessLookupError):
            self._process.kill()
        await asyncio.to_thread(end_marked, self._mark, self._process.pid, CONDUCTOR_MARK)
        return await self.wait()

    async def _spawn(
        self, environment: dict[str, str], log: int, *, succeeds: bool
    ) -> asyncio.subprocess.Process:
        marks = {MARK: self._held.mark, CONDUCTOR_MARK: self._mark}
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            _PROGRAM,
            str(self.scratch),
            str(self._held.log),
            *([_SUCCEEDS] if succeeds else []),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            env=child_environment(self._settings.to_environment() | environment | marks),
        )

    async def _hear(self, process: asyncio.subprocess.Process) -> str:
        """Read what it tells until it ends; returns why it failed, if it said so."""
        assert process.stdout is not None, "it was started with a pipe"
        reason = ""
        while line := await process.stdout.readline():
            with suppress(orjson.JSONDecodeError):
                reason = self._heard(orjson.loads(line)) or reason
        await process.wait()
        return reason

    def _heard(self, message: dict[str, Any]) -> str:
        if "part" in message:
            self.had_ray = True
            self._report(message["part"], message["detail"])
        elif "warning" in message:
            self._report("warning", message["warning"])
        elif "updated" in message:
            self._updates.put_nowait(message["updated"])
        elif "lost" in message:
            self._report("warning", f"{message['lost']} of Ray ended; another Ray is started beside it")
            self.is_damaged.set()
        elif message.get("ready"):
            self.is_ready.set()
        return str(message.get("failed", ""))
