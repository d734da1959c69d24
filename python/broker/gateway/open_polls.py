"""Which polls native code takes votes for by itself, because the ordinary way has just served one.

What holds of a poll (its program is public, its event has these options and is open) holds for a moment only.
So a poll is opened for a second and a half, and as long as it is used it is read and opened anew twice a
second: a change counts within a second, and when this process hangs or the database is away the votes soon
come the ordinary way again, with its errors.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from broker.domain.answers import FREE_CONTEXTS, MAX_OPTION, NOTHING_DECLARED, Declaration, lower_uuid
from broker.domain.programs import Access
from broker.errors import BrokerError
from broker.operations.program_access import WITHOUT_PROJECT
from broker.operations.services import Services
from broker.storage.polls import PollProgram, PollRow
from broker.tasks import keep_running

_log = logging.getLogger(__name__)

RENEW_S = 0.5
OPEN_S = 1.5  # three rounds: one may fail
MAX_OPEN = 500  # two queries a round each at worst; votes of the others come the ordinary way
_MAX_PLACES = 10_000


class PollName(NamedTuple):
    """What a request names a poll by."""

    account: str
    program_id: str
    context_id: str
    measure_name: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a poll belongs."""

    name: PollName
    program_uid: int
    project_id: str | None


class PollTable(Protocol):
    """The part of the native server that is told of polls."""

    def open_poll(
        self,
        account: str,
        program_id: str,
        context_id: str,
        measure_name: str,
        *,
        poll: int,
        shards: int,
        key: bytes,
        options: int,
        allow_change: bool,
        projects: list[str],
        open_s: float,
    ) -> None:
        """See `broker._native.Server.open_poll`."""

    def close_poll(self, account: str, program_id: str, context_id: str, measure_name: str) -> None:
        """See `broker._native.Server.close_poll`."""


class OpenPolls:
    """See the module's docstring. `start` and `stop` on one event loop; nothing here fails a vote."""

    def __init__(self, table: PollTable, services: Services) -> None:
        self._table = table
        self._known = services.audience.known
        self._clock = services.clock
        self._wanted: dict[PollName, None] = {}
        self._open: dict[PollName, float] = {}  # until when, on the monotonic clock
        self._used: dict[PollName, None] = {}
        self._places: OrderedDict[int, Place] = OrderedDict()
        self._arrived = asyncio.Event()
        self._opened = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Open what is wanted, from now on."""
        self._task = keep_running("open polls", self._run)

    async def stop(self) -> None:
        """Close every poll, and open nothing more. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self._wanted.clear()
        for name in list(self._open):
            self._close(name)

    def answered(self, account: str, params: Mapping[str, Any]) -> None:
        """A vote with these params has been served the ordinary way."""
        context = lower_uuid(params["contextId"])
        name = PollName(account, params["programId"], context, params["measureName"])
        now_s = self._clock.monotonic_s()
        if self._open.get(name, now_s) <= now_s and len(self._open) + len(self._wanted) < MAX_OPEN:
            self._wanted[name] = None
            self._arrived.set()

    def use(self, poll: int) -> Place | None:
        """Where a poll belongs whose votes have just been taken; None for one that was forgotten."""
        place = self._places.get(poll)
        if place is not None:
            self._used[place.name] = None
        return place

    def gone(self, poll: int) -> None:
        """A counter says that the poll has been deleted."""
        place = self._places.pop(poll, None)
        if place is not None:
            name = place.name
            self._close(name)
            measure = (name.measure_name, name.context_id)
            self._known.forget(name.account, name.program_id, place.program_uid, [measure])

    async def open_wanted(self) -> None:
        """Open the polls of the votes that have been served since the last time."""
        wanted, self._wanted = self._wanted, {}
        for name in wanted:
            try:
                await self._decide(name.account, name.program_id, [name])
            except BrokerError as error:
                _log.info("poll_not_opened", extra={"cause": error.log_text})
            except Exception:
                _log.exception("poll_not_opened")

    async def renew_when_open(self) -> None:
        """Wait until a poll is open, and `renew`: nobody wakes for nothing."""
        await self._opened.wait()
        await self.renew()
        if not self._open:
            self._opened.clear()

    async def renew(self) -> None:
        """Read anew what is used and open it anew, or not. Raises Unavailable; the rest lapses then."""
        now_s = self._clock.monotonic_s()
        self._open = {name: until_s for name, until_s in self._open.items() if until_s > now_s}
        used, self._used = self._used, {}
        by_program: dict[tuple[str, str], list[PollName]] = {}
        for name in used:
            by_program.setdefault((name.account, name.program_id), []).append(name)
        for (account, program_id), names in by_program.items():
            await self._decide(account, program_id, names)

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            await self.open_wanted()

    async def _decide(self, account: str, program_id: str, names: Collection[PollName]) -> None:
        """Open those polls of a program that anybody may answer, and close the others."""
        contexts = {name.context_id for name in names}
        program, declared = await self._known.look_again(account, program_id, contexts)
        opened: dict[PollName, tuple[PollRow, Declaration]] = {}
        if program is not None and Access(program.access) is Access.PUBLIC:
            measures = {(name.measure_name, name.context_id): name for name in names}
            # They have just been answered; what is deleted meanwhile may be made again.
            rows = await self._known.rows(program.uid, measures.keys(), declared, lambda _new: None)
            is_free = program.metadata.get(FREE_CONTEXTS) is True
            for measure, row in rows.items():
                context = declared.get(measure[1], NOTHING_DECLARED if is_free else None)
                if context is not None and context.is_open(self._clock.now_ms()):
                    opened[measures[measure]] = row, context
        for name in names:
            if program is not None and name in opened:
                self._open_one(name, program, *opened[name])
            else:
                self._close(name)

    def _open_one(self, name: PollName, program: PollProgram, row: PollRow, context: Declaration) -> None:
        open_s = OPEN_S
        if context.closes_ms is not None:
            open_s = min(open_s, max(0, context.closes_ms - self._clock.now_ms()) / 1_000)
        self._open[name] = self._clock.monotonic_s() + open_s
        self._opened.set()
        self._places[row.uid] = Place(name, program.uid, program.project_id)
        self._places.move_to_end(row.uid)
        if len(self._places) > _MAX_PLACES:
            self._places.popitem(last=False)
        self._table.open_poll(
            *name,
            poll=row.uid,
            shards=row.shards,
            key=program.key,
            options=len(context.options) or MAX_OPTION + 1,
            allow_change=context.allow_change,
            projects=sorted(WITHOUT_PROJECT) if program.project_id is None else [program.project_id],
            open_s=open_s,
        )

    def _close(self, name: PollName) -> None:
        self._open.pop(name, None)
        self._table.close_poll(*name)
