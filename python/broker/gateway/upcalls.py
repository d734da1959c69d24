"""Upcalls of the native server, brought from its eventfd into the event loop."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # a name of the stub alone
    from broker._native import Upcall

_log = logging.getLogger(__name__)

TAKEN_AT_ONCE = 256  # about 1 ms of dispatching; then every other callback of the loop has its turn


@dataclass(frozen=True, slots=True)
class Authenticate:
    """A handshake that waits for its token to be checked."""

    conn: int
    account: str
    token: str
    address: str


@dataclass(frozen=True, slots=True)
class OperationCall:
    """A request that native code leaves to Python; it must be answered exactly once.

    Attributes:
        principal: the id that was granted, 0 for an anonymous connection.
        params: raw JSON, empty when the request had none.
    """

    conn: int
    ticket: int
    account: str
    principal: int
    address: str
    method: str
    params: bytes
    is_notification: bool

    @property
    def size(self) -> int:
        """Bytes whose number the client has chosen, about."""
        return len(self.method) + len(self.params)


@dataclass(frozen=True, slots=True)
class Idle:
    """A log has had no subscriber for the linger time."""

    topic: str


@dataclass(frozen=True, slots=True)
class AccessChange:
    """A log became private: these classes of readers must be decided again."""

    topic: str
    readers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class VotesWaiting:
    """Records for a counter wait to be taken; it is told again when none was left and one has come."""

    counter: int


@dataclass(frozen=True, slots=True)
class ConnectsAnswered:
    """Responses to `GET /connect` wait to be logged; told once until they were taken."""


ParsedUpcall = Authenticate | OperationCall | Idle | AccessChange | VotesWaiting | ConnectsAnswered


class UpcallSource(Protocol):
    """The part of the native server that upcalls come from."""

    def upcall_fd(self) -> int:
        """A descriptor that is readable while `take` has something."""

    def take(self, limit: int) -> "list[Upcall]":
        """At most `limit` upcalls, oldest first."""


def parse_upcall(upcall: "Upcall") -> ParsedUpcall:
    """The typed form of one upcall.

    Raises:
        ValueError: its first element is none that this version knows.
    """
    kind, *fields = upcall
    match kind:
        case "call":
            return OperationCall(*fields)
        case "authenticate":
            return Authenticate(*fields)
        case "idle":
            return Idle(*fields)
        case "access":
            topic, readers = fields
            return AccessChange(topic, tuple(readers))
        case "votes":
            return VotesWaiting(*fields)
        case "connects":
            return ConnectsAnswered()
    raise ValueError(f"the native server made an unknown upcall: {kind}")


class UpcallPump:
    """Hands every upcall to `dispatch`, in order, a bounded number a turn of the loop.

    The descriptor stays readable while something is left, so that the loop comes back by itself after
    whatever else was ready. `dispatch` must not block; what it raises is logged and costs that upcall only.
    """

    def __init__(self, source: UpcallSource, dispatch: Callable[[ParsedUpcall], None]) -> None:
        self._source = source
        self._dispatch = dispatch
        self._fd: int | None = None

    def start(self) -> None:
        """Begin to pump on the running loop."""
        self._fd = self._source.upcall_fd()
        asyncio.get_running_loop().add_reader(self._fd, self._pump)

    def stop(self) -> None:
        """Take nothing more. Idempotent; must be called before the server closes its descriptor."""
        if self._fd is not None:
            asyncio.get_running_loop().remove_reader(self._fd)
            self._fd = None

    def _pump(self) -> None:
        for upcall in self._source.take(TAKEN_AT_ONCE):
            try:
                self._dispatch(parse_upcall(upcall))
            except Exception:
                _log.exception("upcall_failed", extra={"upcall": upcall[0] if upcall else None})
