"""What other rooms know of traces: a tracer that begins spans. There is none while traces are off.

A span is named to its children by its context, a text (`broker.tracing.contexts`), which is passed on like
any other value. Times are those of the process' `Clock`, in monotonic seconds. Between machines, spans are as
exact as the wall clocks of these.
"""

from collections.abc import Mapping
from typing import Protocol

SpanValues = Mapping[str, str | int | float]
"""What is known of a step, by name: the attributes of a span."""


class Span(Protocol):
    """One step of a sampled request. It is sent once it has ended; one that never ends is never sent."""

    @property
    def context(self) -> str:
        """What names it to its children."""

    def end(self, attributes: SpanValues | None = None, *, until_s: float | None = None) -> None:
        """End it, now or at a time that has been; called once."""


class Tracer(Protocol):
    """Begins spans. No call waits for the collector; what the collector does not take in time is dropped."""

    def begin(
        self,
        name: str,
        parent: str | None,
        attributes: SpanValues | None = None,
        *,
        since_s: float | None = None,
        is_request: bool = False,
    ) -> Span:
        """Begin a span, now or at a time that has been.

        Args:
            parent: a context; None, or what is none, begins a trace.
            is_request: whether it stands for a request of a client of ours.
        """

    async def close(self) -> None:
        """Send what has ended, for a second at most. Raises nothing."""
