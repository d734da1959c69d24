"""A subscription that outlives connections: it reconnects, recovers by cursor and never repeats an event.

A lost connection, a gateway that shuts down (`reconnect`, 1012), a slow consumer's close (4008) and a hole in
the sequence are all one case: wait with full jitter, ask `GET /connect` for a gateway, subscribe with the
cursor. What the broker refuses for good (no such program, no right to it) is raised, and so is what was lost.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from broker.client.connector import Connector
from broker.client.cursor import Cursor
from broker.client.errors import (
    ApiError,
    ClientError,
    ConnectionFailed,
    NotFound,
    ProgramDeleted,
    ProtocolError,
    ServerError,
    SlowDown,
)
from broker.client.models import Change, Event, position
from broker.client.socket import Notification, Socket
from broker.client.standby import Standby
from broker.client.tracker import Gap, Tracker
from broker.clock import Clock
from broker.concurrency.back_off import Backoff

ItemT = TypeVar("ItemT", covariant=True)

_STABLE_S = 10.0  # a connection that lived this long was a good one: the delays begin again


@dataclass(frozen=True, slots=True)
class SubscriptionConfig:
    """How a subscription comes back.

    Attributes:
        backoff: delays between tries to connect.
        first_deadline_s: how long the first connection may take before the failure is raised; None tries
            for ever.
        give_up_after_s: the same for later ones.
        on_live: called whenever the broker has answered on a new connection.
        on_lost: called with the reason whenever a connection was not made or has ended, and is tried again.
    """

    backoff: Backoff = field(default_factory=lambda: Backoff(0.25, 15.0))
    first_deadline_s: float | None = 30.0
    give_up_after_s: float | None = None
    on_live: Callable[[], None] | None = None
    on_lost: Callable[[ClientError], None] | None = None


class _Moved(Exception):
    """The gateway asked to reconnect, and the time has come."""


class Subscription(Generic[ItemT]):
    """The events of one program, in order; iterate it with `async for`, once.

    Leaving the loop closes the connection. `cursor` may be kept and given as `since` later.
    """

    def __init__(
        self,
        connector: Connector,
        clock: Clock,
        config: SubscriptionConfig,
        tracker: Tracker,
        *,
        changes: bool,
    ) -> None:
        self._connector = connector
        self._clock = clock
        self._standby = Standby(connector)
        self._config = config
        self._tracker = tracker
        self._changes = changes
        self._gateway: str | None = None
        self._avoid: str | None = None
        self._reconnects = 0
        self._cursor = tracker.cursor
        self._move_at: float | None = None
        self._is_live = False
        self._answered = asyncio.Event()

    @property
    def cursor(self) -> Cursor | None:
        """The position of the last item handed out; None before the first connection."""
        return self._cursor

    @property
    def is_live(self) -> bool:
        """Whether the broker has answered on the present connection, and it has not been lost."""
        return self._is_live

    async def answered(self) -> None:
        """Return once the broker has confirmed the subscription; a task must be iterating."""
        await self._answered.wait()

    @property
    def gateway(self) -> str | None:
        """URL of the gateway that is, or was last, connected to."""
        return self._gateway

    @property
    def reconnects(self) -> int:
        """How often the client has reconnected."""
        return self._reconnects

    async def __aiter__(self) -> AsyncIterator[ItemT]:
        """Yield items until the subscription ends.

        Raises:
            HistoryLost, ProgramDeleted, Unsubscribed: the subscription cannot go on.
            ApiError: the broker refuses it.
            ConnectionFailed: no gateway could be reached within the configured time.
        """
        attempt, down_since = 0, self._clock.monotonic_s()
        connected_before = False
        try:
            while True:
                opened: float | None = None
                self._move_at = None
                try:
                    # Connect and subscribe; the reply has what was missed.
                    self._gateway, socket = await self._standby.open(self._avoid)
                    async with socket, self._standby.watch(self._gateway, socket):
                        items = self._tracker.open(await socket.call("subscribe", self._tracker.params()))
                        opened = self._clock.monotonic_s()
                        self._reconnects += connected_before
                        connected_before, self._avoid, self._is_live = True, None, True
                        self._answered.set()
                        if self._config.on_live is not None:
                            self._config.on_live()
                        for item in items:
                            self._cursor = position(item)
                            if self._is_wanted(item):
                                yield cast("ItemT", item)
                        # Then yield notifications as they arrive.
                        self._cursor = self._tracker.cursor
                        while True:
                            change = await self._next(socket)
                            if change is not None and self._is_wanted(change):
                                yield cast("ItemT", change)
                except _Moved:
                    down_since = self._clock.monotonic_s()
                except (ClientError, Gap) as error:
                    # Decide whether to reconnect, to which gateway, and after how long.
                    self._is_live = False
                    now = self._clock.monotonic_s()
                    if opened is None:
                        if connected_before and isinstance(error, NotFound):  # there was one at first
                            raise ProgramDeleted(self._tracker.program_id) from error
                        self._avoid = self._gateway
                    else:
                        down_since = now
                        attempt = 0 if now - opened >= _STABLE_S else attempt
                    delay_s = 0.0 if self._standby.is_ready else self._delay_s(error, attempt)
                    self._check_patience(error, now + delay_s - down_since, connected_before)
                    if self._config.on_lost is not None:
                        self._config.on_lost(_reason(error))
                    attempt += 1
                    await asyncio.sleep(delay_s)
                finally:
                    self._is_live = False
        finally:
            await self._standby.close()

    def _is_wanted(self, change: Change) -> bool:
        return self._changes or isinstance(change, Event)

    async def _next(self, socket: Socket) -> Change | None:
        """The next change; None for what is none. Raises `_Moved` at the time that `reconnect` named."""
        try:
            async with asyncio.timeout_at(self._move_at):
                notification = await socket.receive()
        except TimeoutError:
            raise _Moved from None
        except ConnectionFailed:
            if self._move_at is None:
                raise
            await asyncio.sleep(max(0.0, self._move_at - asyncio.get_running_loop().time()))
            raise _Moved from None
        if notification.method == "reconnect":
            self._move_at = asyncio.get_running_loop().time() + _after_s(notification)
        elif notification.method == "tokenExpiring":
            await self._connector.renew(socket)
        else:
            change = self._tracker.take(notification.method, notification.params)
            self._cursor = self._tracker.cursor
            return change
        return None

    def _delay_s(self, error: Exception, attempt: int) -> float:
        """Seconds to wait before the next connection. Raises the error when another would not help."""
        if not isinstance(error, Gap | ConnectionFailed | ServerError | SlowDown):
            raise error
        retry_after_s = error.retry_after_s if isinstance(error, ApiError) else None
        return max(self._config.backoff.delay_s(attempt), retry_after_s or 0.0)

    def _check_patience(self, error: ClientError | Gap, down_s: float, connected_before: bool) -> None:
        """Raise the error once the connection has been down for too long."""
        limit_s = self._config.give_up_after_s if connected_before else self._config.first_deadline_s
        if limit_s is not None and down_s >= limit_s:
            raise _reason(error)


def _reason(error: ClientError | Gap) -> ClientError:
    return ProtocolError(str(error)) if isinstance(error, Gap) else error


def _after_s(notification: Notification) -> float:
    params: Any = notification.params
    after_ms = params.get("afterMs") if isinstance(params, dict) else None
    return max(0.0, after_ms / 1000) if isinstance(after_ms, int | float) else 0.0
