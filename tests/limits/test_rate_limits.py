"""Token buckets that all processes share."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.domain.callers import caller_of
from broker.errors import SlowDown
from broker.limits.rate_limits import Rate, RateLimit
from broker.storage.database import Database
from broker.storage.rate_buckets import Bucket, RateBuckets
from tests.auth.services import StoppedClock, open_database

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

FREE = Rate(0, 1)
HERE = "192.0.2.1"


@pytest.fixture
async def database(migrated_dsn: str) -> AsyncIterator[Database]:
    async with open_database(migrated_dsn) as database:
        yield database


@pytest.fixture
def clock() -> StoppedClock:
    return StoppedClock()


def limit(
    database: Database, clock: StoppedClock, per_address: Rate, per_account: Rate = FREE, name: str = "test"
) -> RateLimit:
    return RateLimit(name, RateBuckets(database), clock, per_address=per_address, per_account=per_account)


async def retry_after(rate: RateLimit, account: str = "demo", address: str = HERE) -> int:
    with pytest.raises(SlowDown) as refused:
        await rate.take(account, address)
    assert refused.value.retry_after_s is not None
    return refused.value.retry_after_s


@pytest.mark.parametrize(
    ("per_s", "wait_s"), [(1.0, 1), (0.5, 2), (0.1, 10), (2.0, 1), (0.3, 4), (3.0, 1), (0.7, 2), (1_000.0, 1)]
)
async def test_retry_after_is_right_to_the_second(
    database: Database, clock: StoppedClock, per_s: float, wait_s: int
) -> None:
    rate = limit(database, clock, Rate(per_s, 1))
    await rate.take("demo", HERE)
    assert await retry_after(rate) == wait_s
    clock.ms += (wait_s - 1) * 1000
    assert await retry_after(rate) == 1  # what was refused did not make the wait longer
    clock.ms += 1000
    await rate.take("demo", HERE)


async def test_a_token_is_there_at_its_millisecond(database: Database, clock: StoppedClock) -> None:
    rate = limit(database, clock, Rate(4, 1))
    await rate.take("demo", HERE)
    clock.ms += 249
    await retry_after(rate)
    clock.ms += 1
    await rate.take("demo", HERE)


async def test_a_burst_is_as_long_as_it_may_be(database: Database, clock: StoppedClock) -> None:
    rate = limit(database, clock, Rate(1, 3))
    for _ in range(2):
        for _ in range(3):
            await rate.take("demo", HERE)
        assert await retry_after(rate) == 1
        clock.ms += 3_600_000  # far more than fills it


async def test_a_clock_that_steps_back_leaves_an_empty_bucket_at_worst(
    database: Database, clock: StoppedClock
) -> None:
    rate = limit(database, clock, Rate(1, 3))
    clock.ms += 3_600_000
    await rate.take("demo", HERE)
    clock.ms -= 3_600_000
    assert await retry_after(rate) == 1
    clock.ms += 1_000
    await rate.take("demo", HERE)


async def test_addresses_accounts_and_limits_count_apart(database: Database, clock: StoppedClock) -> None:
    rate = limit(database, clock, Rate(1, 1), Rate(1, 2))
    await rate.take("demo", HERE)
    await retry_after(rate)
    await rate.take("demo", "192.0.2.2")
    await retry_after(rate, address="192.0.2.3")  # the account is at its limit
    await rate.take("other", HERE)
    await limit(database, clock, Rate(1, 1), Rate(1, 2), "another").take("demo", HERE)


async def test_the_longer_wait_counts(database: Database, clock: StoppedClock) -> None:
    for name, address, account in (("a", Rate(0.1, 1), Rate(1, 1)), ("b", Rate(1, 1), Rate(0.1, 1))):
        rate = limit(database, clock, address, account, name)
        await rate.take("demo", HERE)
        assert await retry_after(rate) == 10


async def test_a_refused_request_costs_nothing(database: Database, clock: StoppedClock) -> None:
    rate = limit(database, clock, Rate(1, 1), Rate(1, 10))
    await rate.take("demo", HERE)
    for _ in range(20):
        await retry_after(rate)
    for number in range(2, 11):
        await rate.take("demo", f"192.0.2.{number}")
    # Nor does the account's limit cost the address anything.
    await retry_after(rate, address="192.0.2.99")
    clock.ms += 1000
    await rate.take("demo", "192.0.2.99")


async def test_a_rate_of_zero_has_no_limit(database: Database, clock: StoppedClock) -> None:
    rate = limit(database, clock, FREE)
    for _ in range(50):
        await rate.take("demo", HERE)


async def test_processes_share_the_buckets(
    migrated_dsn: str, database: Database, clock: StoppedClock
) -> None:
    async with open_database(migrated_dsn) as second:
        rates = [limit(one, clock, Rate(0.5, 4), Rate(0.5, 7)) for one in (database, second)]
        for number in range(4):
            await rates[number % 2].take("demo", HERE)
        assert [await retry_after(rate) for rate in rates] == [2, 2]
        for number in range(3):
            await rates[number % 2].take("demo", "192.0.2.2")
        assert [await retry_after(rate, address="192.0.2.3") for rate in rates] == [2, 2]


async def test_no_two_take_the_same_token(database: Database, clock: StoppedClock) -> None:
    rate = limit(database, clock, Rate(1, 5), Rate(1, 8))
    takes = [rate.take("demo", f"192.0.2.{number % 2}") for number in range(30)]
    outcomes = await asyncio.gather(*takes, return_exceptions=True)
    assert outcomes.count(None) == 8
    assert {type(outcome) for outcome in outcomes if outcome} == {SlowDown}


async def test_what_is_full_again_is_purged(database: Database, clock: StoppedClock) -> None:
    buckets = RateBuckets(database)
    rate = limit(database, clock, Rate(1, 3))
    await rate.take("demo", HERE)
    await rate.take("demo", "192.0.2.2")
    await rate.take("demo", "192.0.2.2")
    assert await buckets.purge(clock.ms * 1000 + 1_000_001, 10) == 1
    assert await buckets.purge(clock.ms * 1000 + 2_000_001, 10) == 1
    assert await buckets.purge(clock.ms * 1000 + 9_000_000, 10) == 0


@pytest.mark.parametrize(
    ("address", "caller"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8:0:0:ffff::1", "2001:db8::/64"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_what_counts_as_one_caller(address: str, caller: str) -> None:
    assert caller_of(address) == caller


class _Slowly:
    """The obvious bucket: a level that rises and falls, in exact microseconds."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._level = bucket.burst * bucket.each_us
        self._then_us = 0

    def take(self, now_us: int) -> int:
        gained = now_us - self._then_us
        self._level = min(self._bucket.burst * self._bucket.each_us, self._level + gained)
        self._then_us = now_us
        if self._level < self._bucket.each_us:
            return self._bucket.each_us - self._level
        self._level -= self._bucket.each_us
        return 0


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 3_000_000), max_size=25), st.integers(1, 5), st.integers(1, 2_000_000))
async def test_buckets_are_those_of_the_slow_obvious_version(
    database: Database, steps: list[int], burst: int, each_us: int
) -> None:
    bucket = Bucket(f"{burst}/{each_us}/{steps}", each_us, burst)
    slowly, now_us = _Slowly(bucket), 0
    for step in steps:
        now_us += step
        assert await RateBuckets(database).take([bucket], now_us) == slowly.take(now_us)
