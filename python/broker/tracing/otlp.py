"""The tracer over OpenTelemetry's SDK, which sends batches of spans by OTLP over HTTP from its own thread.

The SDK is used without its global and ambient state: parents and times are given for each span.
"""

import asyncio
import os
import threading

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags, set_span_in_context
from opentelemetry.trace import Span as SdkSpan

import broker
from broker.clock import Clock, wall_ns
from broker.tracing.contexts import SpanName, find_sampled
from broker.tracing.tracer import Span, SpanValues

_EXPORT_S = 2.0  # of one batch, with its repeats
_DELAY_MS = 1_000.0  # of a span before it is sent
_BATCH = 512  # spans
_QUEUE = 2_048  # spans of some 2 kB; beyond it the oldest are dropped, and the SDK logs so
_CLOSE_S = 1.0


class OtlpTracer:
    """Begins spans from any thread."""

    def __init__(self, url: str, part: str, clock: Clock) -> None:
        """Connect to nothing yet. Args: url: of the collector, with its path."""
        self._clock = clock
        names = {
            "service.name": "broker",
            "service.version": broker.__version__,
            "host.name": os.uname().nodename,
            "process.pid": os.getpid(),
            "broker.part": part,
        }
        # What is to be sampled has been decided; and a process that ends closes its tracer itself.
        self._provider = TracerProvider(ALWAYS_ON, Resource(names), shutdown_on_exit=False)
        self._provider.add_span_processor(
            BatchSpanProcessor(OTLPSpanExporter(url, timeout=_EXPORT_S), _QUEUE, _DELAY_MS, _BATCH)
        )
        self._tracer = self._provider.get_tracer("broker", broker.__version__)

    def begin(
        self,
        name: str,
        parent: str | None,
        attributes: SpanValues | None = None,
        *,
        since_s: float | None = None,
        is_request: bool = False,
    ) -> Span:
        """Begin a span, with the promises of `Tracer.begin`."""
        kind = SpanKind.SERVER if is_request else SpanKind.INTERNAL
        start_ns = self.moment_ns(since_s)
        span = self._tracer.start_span(name, _below(parent), kind, attributes, start_time=start_ns)
        return _OtlpSpan(span, self)

    def moment_ns(self, at_s: float | None) -> int:
        """A moment of the monotonic clock, None is now, as nanoseconds since 1970 by the machine's clock."""
        ago_s = 0.0 if at_s is None else self._clock.monotonic_s() - at_s
        return wall_ns() - int(ago_s * 1e9)

    async def close(self) -> None:
        """Send what has ended, and end the thread that sends."""
        await asyncio.to_thread(self._shut_down)

    def _shut_down(self) -> None:
        # The SDK's own call lasts as long as a collector hangs that still has several batches to take.
        ending = threading.Thread(target=self._provider.shutdown, daemon=True, name="last spans")
        ending.start()
        ending.join(_CLOSE_S)


class _OtlpSpan:
    """A span of the SDK."""

    def __init__(self, span: SdkSpan, tracer: OtlpTracer) -> None:
        self._span = span
        self._tracer = tracer

    @property
    def context(self) -> str:
        """What names it to its children."""
        own = self._span.get_span_context()
        return str(SpanName(f"{own.trace_id:032x}", f"{own.span_id:016x}"))

    def end(self, attributes: SpanValues | None = None, *, until_s: float | None = None) -> None:
        """End it; the SDK ignores a second end."""
        if attributes:
            self._span.set_attributes(attributes)
        self._span.end(self._tracer.moment_ns(until_s))


def _below(parent: str | None) -> Context:
    """The SDK's form of a parent; one without a span begins a trace."""
    named = None if parent is None else find_sampled(parent)
    if named is None:
        return Context()
    own = SpanContext(int(named.trace_id, 16), int(named.span_id, 16), True, TraceFlags(TraceFlags.SAMPLED))
    return set_span_in_context(NonRecordingSpan(own), Context())
