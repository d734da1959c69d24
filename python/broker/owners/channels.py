"""The channels of one owner that are in memory, with the tasks that tail them."""

import asyncio

from broker.clock import Clock
from broker.concurrency.tasks import cancel_and_wait, keep_running
from broker.owners.channel import ProgramsChannel
from broker.owners.log import LogLimits
from broker.owners.protocol import PROGRAMS_CHANNEL, RESPONSES_CHANNEL, STORAGE_CHANNEL
from broker.owners.responses_channel import ResponsesChannel
from broker.owners.storage_channel import StorageChannel
from broker.owners.tail import Channel
from broker.owners.topics import Hold
from broker.storage.polls import Polls
from broker.storage.program_changes import ProgramOutbox
from broker.storage.programs import Programs
from broker.storage.stored_values import StoredValues


class Channels:
    """All of them, by account and name."""

    def __init__(
        self,
        changes: ProgramOutbox,
        values: StoredValues,
        programs: Programs,
        polls: Polls,
        clock: Clock,
        limits: LogLimits,
        linger_s: float,
    ) -> None:
        self._programs = programs
        self._polls = polls
        self._changes = changes
        self._values = values
        self._clock = clock
        self._limits = limits
        self._linger_s = linger_s
        self._channels: dict[tuple[str, str], Channel] = {}
        self._tails: dict[tuple[str, str], asyncio.Task[None]] = {}

    async def load(self, account: str, name: str, hold: Hold) -> Channel | None:
        """The channel, tailed from its newest row on; None when there is none. Raises Unavailable.

        `hold` keeps it: a channel that was swept is told nothing any more.
        """
        key = (account, name)
        if key not in self._channels:
            channel = await self._make(account, name)
            if channel is not None and key not in self._channels:  # two may have made it at once
                self._channels[key] = channel
                self._tails[key] = keep_running("channel", channel.run)
        found = self._channels.get(key)
        if found is not None:
            hold.keep(found)
        return found

    def nudge(self, account: str, name: str) -> None:
        """Look for news at once, if anybody follows."""
        channel = self._channels.get((account, name))
        if channel is not None:
            channel.nudge()

    def doubt(self) -> None:
        """The database may be another one than a moment ago, without all that was told."""
        for channel in self._channels.values():
            channel.doubt()

    async def sweep(self) -> None:
        """Forget old entries, and channels that nobody has followed for a while."""
        now_s = self._clock.monotonic_s()
        for key, channel in list(self._channels.items()):
            channel.log.trim(now_s)
            if channel.waiters:
                channel.idle_since_s = now_s
            elif now_s - channel.idle_since_s >= self._linger_s:
                del self._channels[key]
                await cancel_and_wait(self._tails.pop(key))

    async def close(self) -> None:
        """End all tails."""
        self._channels.clear()
        tails = list(self._tails.values())
        self._tails.clear()
        await cancel_and_wait(*tails)

    async def _make(self, account: str, name: str) -> Channel | None:
        if name == PROGRAMS_CHANNEL:
            programs = ProgramsChannel(account, self._changes, self._clock, self._limits)
            await programs.begin()
            return programs
        if name.startswith(RESPONSES_CHANNEL):
            program_id = name.removeprefix(RESPONSES_CHANNEL)
            return await ResponsesChannel.load(
                account, program_id, self._programs, self._polls, self._clock, self._limits
            )
        if not name.startswith(STORAGE_CHANNEL):
            return None
        project_id = name.removeprefix(STORAGE_CHANNEL)
        if not await self._values.has_project(account, project_id):
            return None
        values = StorageChannel(account, project_id, self._values, self._clock, self._limits)
        await values.begin()
        return values
