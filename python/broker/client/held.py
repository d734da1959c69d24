"""Events that wait until the video reaches them. No I/O.

Everything that is due before the `horizon` is known: it waits here, or was released. What is due later is
read when the video comes near, so that a viewer who pauses for hours does not gather them all.
"""

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable

from broker.client.models import Event
from broker.clock import to_ms

MOST = 10_000  # held at a time, of about a kilobyte each; then the later half goes
REMEMBERED = 10_000  # ids of events that were released or changed

_Key = tuple[float, int, str]


class Held:
    """The events of one program that are not due.

    Attributes:
        horizon_ms: see the module's docstring; infinite where all that comes is told by a subscription.
    """

    def __init__(self) -> None:
        self.horizon_ms = math.inf
        self._order: list[_Key] = []  # ascending
        self._events: dict[str, Event] = {}
        self._changed: dict[str, Event | None] = {}
        self._released: dict[str, Event | None] = {}

    def __len__(self) -> int:
        return len(self._events)

    def next_due_ms(self, *, falls_back: bool = False) -> float:
        """When the first of them is due; infinite without any."""
        if falls_back:
            return min((_due_ms(event, True) for event in self._events.values()), default=math.inf)
        return self._order[0][0] if self._order else math.inf

    def clear(self) -> None:
        """Forget everything: the history is another one."""
        self._changed.clear()
        self.begin(-math.inf)
        self.horizon_ms = math.inf

    def begin(self, horizon_ms: float) -> None:
        """After a seek: what was released may be again, and what will be put reaches to a horizon."""
        self._released.clear()
        self._drop_from(horizon_ms)

    def put(self, events: Iterable[Event], start_ms: float = -math.inf, *, falls_back: bool = False) -> None:
        """Hold events that were read and are due from a place on.

        A notification that has arrived since overrides what was read.
        """
        for event in events:
            told = self._changed.get(event.id, event)
            if told is not None and event.id not in self._events and _due_ms(told, falls_back) >= start_ms:
                self._add(told)
        self._trim()

    def tell(self, event: Event) -> None:
        """Hold an event that has come."""
        self._add(event)
        self._trim()

    def change(self, event: Event, place_ms: float, *, falls_back: bool) -> None:
        """An event is another one now; what was released already, or should have been, is left alone."""
        _remember(self._changed, event.id, event)
        was_held = self._remove(event.id)
        if was_held or _due_ms(event, falls_back) > place_ms:
            self._add(event)

    def delete(self, id_: str) -> None:
        """An event is gone."""
        _remember(self._changed, id_, None)
        self._remove(id_)

    def release(self, place_ms: float, *, falls_back: bool) -> list[Event]:
        """Take what is due at a place of the video, in order."""
        if falls_back:
            # By when it was made, too: a producer's clock that is ahead holds nothing back.
            keys = [key for key in self._order if _due_ms(self._events[key[2]], True) <= place_ms]
        else:
            keys = self._order[: bisect_right(self._order, (place_ms, math.inf))]
        released = [self._events[key[2]] for key in keys]
        for event in released:
            self._remove(event.id)
            _remember(self._released, event.id, None)
        return released

    def drop_before(self, place_ms: float) -> None:
        """Forget what is due before a place."""
        for key in self._order[: bisect_left(self._order, (place_ms,))]:
            self._remove(key[2])

    def _add(self, event: Event) -> None:
        due_ms = _due_ms(event, False)
        if due_ms < self.horizon_ms and event.id not in self._released:
            self._remove(event.id)
            insort(self._order, (due_ms, event.seq, event.id))
            self._events[event.id] = event

    def _remove(self, id_: str) -> bool:
        event = self._events.pop(id_, None)
        if event is None:
            return False
        del self._order[bisect_left(self._order, (_due_ms(event, False), event.seq, id_))]
        return True

    def _trim(self) -> None:
        """Where too many wait, drop those that are furthest ahead; they are read when they are near."""
        if len(self._order) <= MOST:
            return
        horizon_ms = self._order[MOST // 2][0]
        if horizon_ms > self._order[0][0]:  # else one moment has them all
            self._drop_from(horizon_ms)

    def _drop_from(self, horizon_ms: float) -> None:
        at = bisect_left(self._order, (horizon_ms,))
        for key in self._order[at:]:
            del self._events[key[2]]
        del self._order[at:]
        self.horizon_ms = horizon_ms


def _due_ms(event: Event, falls_back: bool) -> float:
    return min(event.timecode, to_ms(event.created_time)) if falls_back else event.timecode


def _remember(memory: dict[str, Event | None], id_: str, event: Event | None) -> None:
    memory[id_] = event
    if len(memory) > REMEMBERED:
        del memory[next(iter(memory))]
