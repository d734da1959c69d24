"""Which requests are traced: a share of them, and those whose callers ask for it.

A caller asks by the header `traceparent` with the flag `sampled`; the spans are then a part of the caller's
trace. So that nobody can make us trace everything, no request without a token is traced, and what an account
asks for is bounded in each process. Beyond the bound the share decides, as for any other request.
"""

import secrets

from broker._native import Rates
from broker.clock import Clock
from broker.tracing.contexts import find_sampled
from broker.tracing.tracer import Span, SpanValues, Tracer

ASKED_PER_S = 10.0
"""Traces a second that one account may ask for, in each process: enough to look at a rehearsal."""
ASKED_BURST = 20
_ACCOUNTS = 1_000  # whose bounds are remembered
_PARTS = 1 << 53


class RequestTraces:
    """Begins the traces of one door. Belongs to one event loop."""

    def __init__(self, tracer: Tracer, share: float, clock: Clock) -> None:
        """Args: share: of the requests that nobody asks to be traced, 0 to 1."""
        self._tracer = tracer
        self._below = int(share * _PARTS)
        self._clock = clock
        self._asked = Rates(ASKED_PER_S, ASKED_BURST, _ACCOUNTS)

    def begin(
        self, traceparent: bytes | None, account: str, since_s: float, attributes: SpanValues
    ) -> Span | None:
        """The span of a request of a caller with a token; None when it is not traced.

        Args:
            traceparent: the header as it came.
            since_s: when the request came.
        """
        parent = None if traceparent is None else self._wish(traceparent, account)
        if parent is None and secrets.randbelow(_PARTS) >= self._below:
            return None
        known = {"broker.account": account, **attributes}
        return self._tracer.begin("http request", parent, known, since_s=since_s, is_request=True)

    def _wish(self, traceparent: bytes, account: str) -> str | None:
        """The caller's span, if this request is to be traced as a part of it."""
        named = find_sampled(traceparent.decode("latin-1"))
        if named is None or self._asked.take(account, 1, self._clock.monotonic_s()):
            return None
        return str(named)
