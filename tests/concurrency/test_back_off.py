"""Back-off: `broker.concurrency.back_off`."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.concurrency.back_off import Backoff, Delays


@given(st.integers(0, 10_000), st.floats(0, 1, exclude_max=True))
def test_delay_lies_below_its_ceiling(attempt: int, drawn: float) -> None:
    delay = Backoff(0.1, 5.0).delay_s(attempt, lambda: drawn)
    assert 0 <= delay < 5.0
    assert delay <= 0.1 * 2 ** min(attempt, 40)


def test_ceiling_doubles_up_to_the_cap() -> None:
    backoff = Backoff(0.1, 0.5)
    assert [round(backoff.delay_s(n, lambda: 1.0), 3) for n in range(4)] == [0.1, 0.2, 0.4, 0.5]


@pytest.mark.parametrize(("jitter", "shortest"), [(0.0, 4.0), (0.5, 2.0), (1.0, 0.0)])
def test_jitter_is_the_share_that_is_drawn(jitter: float, shortest: float) -> None:
    backoff = Backoff(1.0, 4.0, jitter)
    assert (backoff.delay_s(9, lambda: 0.0), backoff.delay_s(9, lambda: 1.0)) == (shortest, 4.0)


@pytest.mark.parametrize(("base", "cap"), [(0, 1), (-1, 1), (2, 1)])
def test_backoff_without_sense_is_refused(base: float, cap: float) -> None:
    with pytest.raises(ValueError, match="base_s"):
        Backoff(base, cap)


@pytest.mark.parametrize("jitter", [-0.1, 1.1])
def test_jitter_beyond_its_range_is_refused(jitter: float) -> None:
    with pytest.raises(ValueError, match="jitter"):
        Backoff(1, 2, jitter)


def test_delays_grow_until_something_succeeds() -> None:
    delays = Delays(Backoff(1.0, 3.0, jitter=0))
    assert [delays.next_s() for _ in range(4)] == [1.0, 2.0, 3.0, 3.0]
    delays.reset()
    assert delays.next_s() == 1.0


@pytest.mark.anyio
async def test_a_wait_ends_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    delays = Delays(Backoff(1.0, 9.0, jitter=0))
    await delays.wait()
    await delays.wait(at_most_s=0.5)
    await delays.wait()
    assert slept == [1.0, 0.5, 4.0]
