"""Which requests are traced."""

from collections.abc import AsyncIterator

import pytest

from broker.settings import Settings
from broker.tracing.contexts import trace_id_of
from broker.tracing.opening import open_tracer
from broker.tracing.requests import RequestTraces
from broker.tracing.tracer import Tracer
from tests.auth.services import StoppedClock
from tests.tracing.collector import open_collector

pytestmark = pytest.mark.anyio

TRACE = "0af7651916cd43dd8448eb211c80319c"
ASKED = f"00-{TRACE}-b7ad6b7169203331-01".encode()


@pytest.fixture(scope="module")
async def tracer(anyio_backend: str) -> AsyncIterator[Tracer]:
    with open_collector() as collector:
        tracer = open_tracer(Settings(traces_url=collector.url), "api", StoppedClock())
        assert tracer is not None
        yield tracer
        await tracer.close()


def begun(traces: RequestTraces, header: bytes | None, account: str = "demo", times: int = 1) -> list[str]:
    """The traces that so many requests are parts of."""
    spans = [traces.begin(header, account, 0.0, {}) for _ in range(times)]
    return [trace_id_of(span.context) for span in spans if span is not None]


async def test_share_decides_where_nobody_asks(tracer: Tracer) -> None:
    assert len(set(begun(RequestTraces(tracer, 1.0, StoppedClock()), None, times=20))) == 20
    assert begun(RequestTraces(tracer, 0.0, StoppedClock()), None, times=1_000) == []
    assert 0 < len(begun(RequestTraces(tracer, 0.1, StoppedClock()), None, times=1_000)) < 500


async def test_who_asks_gets_a_part_of_the_own_trace(tracer: Tracer) -> None:
    assert begun(RequestTraces(tracer, 0.0, StoppedClock()), ASKED) == [TRACE]


@pytest.mark.parametrize("header", [ASKED[:-1] + b"0", b"", b"\xff", b"00-trace-span-01"])
async def test_what_does_not_ask_is_left_to_the_share(tracer: Tracer, header: bytes) -> None:
    assert begun(RequestTraces(tracer, 0.0, StoppedClock()), header) == []
    assert TRACE not in begun(RequestTraces(tracer, 1.0, StoppedClock()), header)


async def test_an_account_asks_for_so_many_at_a_time(tracer: Tracer) -> None:
    clock = StoppedClock()
    traces = RequestTraces(tracer, 0.0, clock)
    assert begun(traces, ASKED, times=100) == [TRACE] * 20
    assert begun(traces, ASKED, "other") == [TRACE]
    clock.ms += 1_000
    assert begun(traces, ASKED, times=100) == [TRACE] * 10


async def test_beyond_the_bound_the_share_decides_and_the_trace_is_ours(tracer: Tracer) -> None:
    traces = RequestTraces(tracer, 1.0, StoppedClock())
    first, rest = (begun(traces, ASKED, times=20), begun(traces, ASKED, times=20))
    assert first == [TRACE] * 20
    assert TRACE not in rest
    assert len(set(rest)) == 20
