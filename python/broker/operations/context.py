"""What a handler is given: who calls, under which request id, and the services to do it with."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.domain.users import Principal

if TYPE_CHECKING:
    from broker.operations.services import Services


def _nothing() -> None:
    """Nobody waits for the hand-over."""


@dataclass(frozen=True, slots=True)
class Context:
    """One call of one operation.

    Attributes:
        principal: who calls; its `account` bounds everything that the call can see.
        request_id: for logs and error bodies.
        address: of the caller, after trusted proxies are taken off; for rate limits.
        idempotency_key: as sent, 1 to 255 characters, or None.
        if_match: entity tag that a change must meet, or None.
        accept: media types that the caller takes, as in the `Accept` header; empty takes any.
        body: the raw body of a route that streams it; None elsewhere.
        ordered: called by a handler once the order of its effect is fixed (a publish is in its owner's
            queue), so that a door may start the connection's next request before this one is answered.
    """

    services: "Services"
    principal: Principal
    request_id: str
    address: str = ""
    idempotency_key: str | None = None
    if_match: str | None = None
    accept: str = ""
    body: AsyncIterator[bytes] | None = None
    ordered: Callable[[], None] = field(default=_nothing)
