"""The position of a subscription: detects the next notification, duplicates and gaps. No I/O.

A program's pushes carry `epoch` and `seq`, counted without a gap. The tracker keeps the position of the last
push handed out with its id, its *cursor*, and takes what comes in:

* the next `seq` of the epoch is handed out and moves the cursor;
* a `seq` at or below the cursor has been handed out before and is dropped;
* anything else is a hole (`Gap`): the connection is given up, and the next one recovers from the cursor;
* `historyReplaced` and `eventsDeleted` begin a new epoch at their own `seq`; of the current epoch they are
  repeats, unless their `seq` is beyond the cursor: the pushes between are lost.

The answer to `subscribe` brings the missed pushes first. Recovered ones must go on from the cursor without a
hole, or the broker has broken its word; a wanted `history` begins anywhere. An answer that is not `recovered`
ends the subscription with `HistoryLost`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from broker.client.cursor import Cursor
from broker.client.errors import HistoryLost, ProgramDeleted, ProtocolError, Unsubscribed
from broker.client.models import (
    Change,
    Event,
    EventDeleted,
    EventsDeleted,
    EventUpdated,
    HistoryReplaced,
)


class Gap(Exception):
    """A push is missing between the cursor and the one that came."""


class Tracker:
    """Follows one program over any number of connections; one at a time."""

    def __init__(self, program_id: str, since: Cursor | None = None, history: int = 0) -> None:
        """Begin after `since`, else with the last `history` pushes, else with what comes next."""
        if history < 0:
            raise ValueError("history must not be negative")
        self.program_id = program_id
        self._history = history
        self._cursor = since

    @property
    def cursor(self) -> Cursor | None:
        """The position to go on from; None before the first answer."""
        return self._cursor

    def params(self) -> dict[str, Any]:
        """The params of the next `subscribe`."""
        params: dict[str, Any] = {"programId": self.program_id}
        if self._cursor is not None:
            cursor = self._cursor
            params["since"] = {"epoch": cursor.epoch, "seq": cursor.seq}
            if cursor.id is not None:
                params["since"]["id"] = cursor.id
        elif self._history:
            params["history"] = self._history
        return params

    def open(self, result: Any) -> list[Change]:
        """Take the answer to `subscribe`; returns what was missed, oldest first.

        Raises:
            HistoryLost: it did not recover from the cursor.
            ProtocolError: it is malformed, leaves a hole or goes back.
        """
        if not isinstance(result, Mapping):
            raise ProtocolError("the reply to subscribe is not an object")
        head = _position(result)
        if self._cursor is not None and result.get("recovered") is False:
            raise HistoryLost(self.program_id, head, self._cursor)
        changes = self._recover(result.get("events") or ())
        if self._cursor is None:
            self._cursor = head
        elif self._cursor != head:
            raise ProtocolError(f"recovery ended at {self._cursor}, not at {head}")
        elif self._cursor.id is None:
            self._cursor = head
        return changes

    def _recover(self, items: Any) -> list[Change]:
        changes = []
        for item in items:
            method = item.get("method", "event")
            if self._cursor is None:
                self._cursor = _before(item)
            try:
                change = self.take(method, item)
            except Gap as gap:
                raise ProtocolError(f"recovery left a gap: {gap}") from None
            if change is not None:
                changes.append(change)
        return changes

    def take(self, method: str, params: Any) -> Change | None:
        """Take a notification; returns what to hand out, or None for a repeat or another matter.

        Raises:
            Gap: a push before it is missing.
            ProgramDeleted, Unsubscribed: the subscription has ended.
            ProtocolError: it is malformed.
        """
        if not isinstance(params, Mapping) or params.get("programId") != self.program_id:
            return None
        if method in _PUSHES:
            return self._push(method, params)
        if method in _RESETS:
            return self._reset(method, params)
        if method == "programDeleted":
            raise ProgramDeleted(self.program_id)
        if method == "unsubscribed":
            raise Unsubscribed(self.program_id, str(params.get("reason", "")))
        return None

    def _push(self, method: str, params: Mapping[str, Any]) -> Change | None:
        position = _position(params)
        cursor = self._cursor
        if cursor is None or position.epoch != cursor.epoch:
            raise Gap(f"{position} came after {cursor}")
        if position.seq <= cursor.seq:
            return None
        if position.seq != cursor.seq + 1:
            raise Gap(f"{position} came after {cursor}")
        change = _PUSHES[method](params)
        self._cursor = position
        return change

    def _reset(self, method: str, params: Mapping[str, Any]) -> Change | None:
        position, cursor = _position(params), self._cursor
        if cursor is not None and position.epoch == cursor.epoch and position.seq <= cursor.seq:
            return None
        change = _RESETS[method](params)
        self._cursor = position
        return change


def _position(params: Mapping[str, Any]) -> Cursor:
    epoch, seq = params.get("epoch"), params.get("seq")
    if not isinstance(epoch, str) or not isinstance(seq, int) or seq < 0:
        raise ProtocolError("the broker sent a push without epoch and seq")
    id_ = params.get("id")
    return Cursor(epoch, seq, id_ if isinstance(id_, str) else None)


def _before(item: Mapping[str, Any]) -> Cursor:
    """The position just before the first item of a wanted history."""
    first = _position(item)
    return Cursor(first.epoch, max(first.seq - 1, 0))


def _updated(params: Mapping[str, Any]) -> EventUpdated:
    return EventUpdated(Event.parse(params))


_PUSHES: dict[str, Callable[[Mapping[str, Any]], Change]] = {
    "event": Event.parse,
    "eventUpdated": _updated,
    "eventDeleted": EventDeleted.parse,
}
_RESETS: dict[str, Callable[[Mapping[str, Any]], Change]] = {
    "eventsDeleted": EventsDeleted.parse,
    "historyReplaced": HistoryReplaced.parse,
}
