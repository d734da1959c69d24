"""The channel `programs` of an account: pushes the rows of the outbox `program_changes`.

Programs that go live or end by the clock get their rows from here, on time; those that do by being changed
get them with the change.
"""

from collections.abc import Iterable

import orjson

from broker.clock import Clock
from broker.domain.programs import Program, ProgramResource
from broker.owners.log import LogLimits, Step
from broker.owners.protocol import PROGRAMS_CHANNEL, channel_topic
from broker.owners.tail import LOOK_S, TailedChannel
from broker.storage.program_changes import ProgramChangeRow, ProgramOutbox

_PAGE = 1_000  # rows a look
_SOONEST_S = 0.001


class ProgramsChannel(TailedChannel):
    """The topic of one account's `programs` channel. Following it needs a token, so it is not public."""

    def __init__(self, account: str, changes: ProgramOutbox, clock: Clock, limits: LogLimits) -> None:
        name = channel_topic(account, PROGRAMS_CHANNEL)
        super().__init__(name, clock, limits, public=False, page=_PAGE)
        self._account = account
        self._changes = changes
        self._since_ms = clock.now_ms()  # subscribers receive what happens from here on
        self._boundary_ms: int | None = self._since_ms

    async def _look(self) -> float:
        """Write what has passed, tell what is new; wait no longer than until a program goes live or ends."""
        now_ms = self._clock.now_ms()
        is_due = self._boundary_ms is not None and self._boundary_ms <= now_ms
        if await self._tell_news() or is_due:
            # Changed programs may have changed what comes next, and what has passed.
            if await self._changes.pass_boundaries(self._account, self._since_ms):
                await self._tell_news()
            self._boundary_ms = await self._changes.next_boundary_ms(self._account, now_ms)
        if self._boundary_ms is None:
            return LOOK_S
        return min(LOOK_S, max(_SOONEST_S, (self._boundary_ms - self._clock.now_ms()) / 1000))

    async def _recent(self, limit: int) -> list[Step]:
        return self._steps(await self._changes.recent(self._account, limit))

    async def _read(self, after: int, limit: int) -> list[Step]:
        return self._steps(await self._changes.after(self._account, after, limit))

    def _steps(self, rows: Iterable[ProgramChangeRow]) -> list[Step]:
        return [self._notice(row.id, "program", _notice_json(row)) for row in rows]


def _notice_json(row: ProgramChangeRow) -> bytes:
    fields = orjson.loads(row.program)
    fields.pop("live", None)
    resource = ProgramResource.of(Program.read(fields), row.time_ms)
    program = orjson.Fragment(resource.model_dump_json())
    return orjson.dumps({"channel": PROGRAMS_CHANNEL, "change": row.change, "program": program})
