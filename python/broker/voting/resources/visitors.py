"""Hands out visitors: names for voters that nobody can invent, of which nothing is stored."""

from pydantic import Field

from broker.auth.issued_visitors import LIFETIME_S, issue, read
from broker.auth.signed_visitors import NotSigned
from broker.domain.callers import caller_of
from broker.domain.values import Model
from broker.operations.context import Context
from broker.operations.registry import Effect, Operation, Route
from broker.voting.rules import PrintableText


class CreateVisitorParams(Model):
    """A visitor to go on with."""

    visitor_id: PrintableText | None = Field(
        default=None,
        description="One that was handed out before, to be the same visitor for longer; otherwise a new one.",
    )


class Visitor(Model):
    """A visitor, and until when its `visitorId` is accepted (ms)."""

    visitor_id: str
    expires: int


async def _create_visitor(context: Context, params: CreateVisitorParams) -> Visitor:
    audience, account = context.services.audience, context.principal.account
    if context.connection:
        audience.per_connection.take(context.connection, 1)
    if context.address:
        audience.per_address.take(f"{account}/{caller_of(context.address)}", 1)
    secret = await audience.visitors.ensure_secret(account)
    now_ms = context.services.clock.now_ms()
    known = None
    if params.visitor_id is not None:
        try:
            known = read(params.visitor_id, secret, account, now_ms)
        except NotSigned:
            known = None  # its time is over, or the account's secret has changed
    if known is None:
        await audience.visitors.take(account, context.address)
    token, expires_s = issue(secret, account, now_ms, known)
    return Visitor.model_construct(visitor_id=token, expires=expires_s * 1_000)


OPERATIONS = (
    Operation(
        name="createVisitor",
        summary="Get a visitor id that polls accept",
        handler=_create_visitor,
        own_effect=Effect.NONE,
        route=Route(
            "POST",
            "/responses/visitor",
            description="A `visitorId` for votes, which polls with `visitors: issued` in the event's metadata"
            f" require. It is accepted for {LIFETIME_S // 86_400} days, in all programs of the account."
            " Send the one from before to remain the same visitor; where that has expired or is of"
            " another account, a new one is handed out. New ones are"
            " {visitors_rate_per_address} a second for one address (in a burst"
            " {visitors_burst_per_address}) and {visitors_rate_per_network} for one network (in a burst"
            " {visitors_burst_per_network}), over all processes; 0 has no limit.",
        ),
        example={},
        tag="Responses",
    ),
)
