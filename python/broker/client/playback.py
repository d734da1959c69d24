"""Derives the moment that a viewer's video shows from what its player reports. No I/O.

The moment is on the axis of `timecode`: milliseconds since 1970-01-01T00:00:00Z. A player is asked again and
again, and what it says is one of four:

* a little more than before: it plays. A video that runs at up to four times its speed, and a process that
  was asleep, are no seeks; nothing between is skipped;
* much more, or over a second less: the viewer has sought;
* up to a second less: players are not exact, and the video stays where it was;
* nothing: for five seconds the video stands still. Then it *falls back* to the broker's clock, less a
  delay.
"""

import math
from collections.abc import Callable
from datetime import datetime
from enum import Enum, auto

from broker.clock import to_ms

Position = Callable[[], "float | datetime | None"]
"""Tells the moment that the video shows: milliseconds since 1970, or an aware datetime; None is unknown."""

JITTER_MS = 1_000.0  # a keyframe's distance: players round to one
SPEED = 4.0
PATIENCE_MS = 5_000.0  # for a player that loads or buffers


class Move(Enum):
    """What the video has done since it was looked at last."""

    NONE = auto()
    BEGUN = auto()
    BACK = auto()
    FORWARD = auto()


class Playback:
    """The video of one viewer.

    Attributes:
        place_ms: what it shows; None until that is known.
        falls_back: whether that is the broker's clock, less the delay.
    """

    def __init__(self, position: Position | None, delay_ms: float) -> None:
        self._position = position
        self._delay_ms = delay_ms
        self._asked_ms: float | None = None  # when the player last knew, or was first asked
        self.place_ms: float | None = None
        self.falls_back = False

    def look(self, now_ms: float, server_ms: float) -> Move:
        """Ask the player.

        Args:
            now_ms: of a clock that never goes back.
            server_ms: the broker's time.
        """
        asked_ms, shown_ms = now_ms if self._asked_ms is None else self._asked_ms, self._ask()
        if shown_ms is None:
            self._asked_ms = asked_ms
            if self._position is not None and now_ms - asked_ms < PATIENCE_MS:
                return Move.NONE
            self.falls_back = True
            return self._go_to(server_ms - self._delay_ms, Move.NONE)
        before_ms, elapsed_ms = self.place_ms, now_ms - asked_ms
        was_on_its_own, self.falls_back = self.falls_back, False
        self._asked_ms = now_ms
        if before_ms is not None and shown_ms < before_ms - JITTER_MS:
            self.place_ms = shown_ms
            return Move.BACK
        is_leap = before_ms is not None and shown_ms > before_ms + SPEED * elapsed_ms + JITTER_MS
        return self._go_to(shown_ms, Move.FORWARD if is_leap and not was_on_its_own else Move.NONE)

    def _go_to(self, place_ms: float, move: Move) -> Move:
        if self.place_ms is None:
            self.place_ms = place_ms
            return Move.BEGUN
        self.place_ms = max(self.place_ms, place_ms)
        return move

    def _ask(self) -> float | None:
        if self._position is None:
            return None
        try:
            shown = self._position()
        except (
            Exception
        ):  # a player that is being taken down says anything; the caller's own bug shows as now
            return None
        if isinstance(shown, datetime):
            return float(to_ms(shown)) if shown.tzinfo is not None else None
        is_number = isinstance(shown, int | float) and not isinstance(shown, bool) and math.isfinite(shown)
        return float(shown) if is_number and shown is not None else None
