"""The context of a call: the caller, the request id, and the services of handlers."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.concurrency.shares import Asker
from broker.domain.callers import caller_of
from broker.domain.idempotency import IdempotencyKey
from broker.domain.permission_table import CLOSED, Rule
from broker.domain.users import Principal
from broker.owners.protocol import Caller

if TYPE_CHECKING:
    from broker.operations.services import Services


def nobody_waits() -> None:
    """The default of `Context.ordered`: no request waits for this one's order."""


@dataclass(slots=True)
class Context:
    """One call of one operation; whoever makes it leaves it to `invoke`, and nobody else changes it.

    It is not frozen because that triples the time of making it.

    Attributes:
        principal: who calls; its `account` bounds everything that the call can see.
        rule: of the operation; `invoke` sets it, and the handler asks it about the resource.
        request_id: for logs and error bodies.
        address: of the caller, after trusted proxies are taken off; for rate limits.
        connection: names the WebSocket connection among all there are; empty over REST.
        idempotency_key: as sent and not checked yet, or None.
        key: the checked key with its caller and request; `invoke` sets it for operations that honour keys.
        told: what `after` was given.
        if_match: entity tag that a change must meet, or None.
        body_type: the media type of the body, one of the route's `consumes`; empty over WebSocket.
        headers: of the request, names in lower case, for a route that is a proxy; empty elsewhere.
        accept: the media type to answer in, one of the route's `produces`; empty takes the first.
        body: the raw body of a route that streams it; None elsewhere.
        ordered: called by a handler once the order of its effect is fixed (a publish is in its owner's
            queue), so that a door may start the connection's next request before this one is answered.
        votes_before: waits until the votes that the connection sent before are counted; None over REST.
        trace: what names the span of a request that is traced; None of the others.
    """

    services: "Services"
    principal: Principal
    request_id: str
    address: str = ""
    connection: str = ""
    rule: Rule = CLOSED
    idempotency_key: str | None = None
    key: IdempotencyKey | None = None
    if_match: str | None = None
    body_type: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    accept: str = ""
    body: AsyncIterator[bytes] | None = None
    ordered: Callable[[], None] = field(default=nobody_waits)
    votes_before: Callable[[], Awaitable[None]] | None = None
    told: list[Callable[[], Awaitable[None]]] | None = None
    trace: str | None = None

    @property
    def caller(self) -> Caller:
        """Who calls, for the program's owner, which decides at the moment of the change."""
        return Caller(self.principal.role, self.principal.project_ids)

    @property
    def asker(self) -> Asker:
        """For whom its work is done, where accounts and addresses take turns."""
        return Asker(self.principal.account, caller_of(self.address))

    @property
    def subject(self) -> str:
        """The id of the user who calls, in operations whose audience lets no caller without a token in."""
        assert self.principal.subject is not None, "the audience lets no caller without a token in"
        return self.principal.subject

    def after(self, tell: Callable[[], Awaitable[None]]) -> None:
        """Have `invoke` call `tell` once the effect is committed: before, there is nothing to be seen."""
        self.told = [*(self.told or ()), tell]
