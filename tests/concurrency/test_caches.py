"""Bounded caches: `broker.concurrency.caches`."""

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from broker.concurrency.caches import LruCache, TtlCache
from tests.auth.services import StoppedClock


def test_the_least_recently_used_goes_first() -> None:
    cache: LruCache[str, int] = LruCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert (list(cache), cache.values()) == (["a", "c"], [1, 3])


def test_peeking_and_replacing_are_no_use() -> None:
    cache: LruCache[str, int] = LruCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.peek("a") == 1
    cache.replace("a", 5)
    cache.put("c", 3)
    assert list(cache) == ["b", "c"]


def test_what_leaves_is_told_after_it_has_left() -> None:
    left: list[tuple[str, int, bool]] = []
    cache: LruCache[str, int] = LruCache(
        1, on_eviction=lambda key, value: left.append((key, value, key in cache))
    )
    cache.put("a", 1)
    cache.put("a", 2)
    cache.pop("b")
    cache.put("b", 3)
    cache.pop("b")
    assert left == [("a", 2, False)]


def test_sizes_are_bounded_and_a_value_over_the_bound_is_not_kept() -> None:
    cache: LruCache[str, bytes] = LruCache(10, len)
    cache.put("a", b"1234")
    cache.put("b", b"123456")
    assert (list(cache), cache.size) == (["a", "b"], 10)
    cache.put("a", b"12345")
    assert (list(cache), cache.size) == (["a"], 5)
    cache.put("c", b"12345678901")
    assert (list(cache), cache.size) == ([], 0)
    cache.put("d", b"1")
    cache.clear()
    assert (len(cache), cache.size) == (0, 0)


_STEPS = st.lists(
    st.tuples(st.sampled_from(["get", "put", "replace", "pop"]), st.integers(0, 6), st.integers(1, 4))
)


@given(_STEPS, st.integers(1, 12))
def test_it_does_what_an_obvious_cache_does(steps: list[tuple[str, int, int]], most: int) -> None:
    cache: LruCache[int, int] = LruCache(most, lambda value: value)
    obvious: OrderedDict[int, int] = OrderedDict()
    for step, key, value in steps:
        if step == "get":
            assert cache.get(key) == obvious.get(key)
            if key in obvious:
                obvious.move_to_end(key)
        elif step == "pop":
            assert cache.pop(key) == obvious.pop(key, None)
        else:
            if step == "put":
                obvious.pop(key, None)
            obvious[key] = value
            cache.put(key, value) if step == "put" else cache.replace(key, value)
            while sum(obvious.values()) > most:
                obvious.popitem(last=False)
        assert (list(cache), cache.values(), cache.size) == (
            list(obvious),
            list(obvious.values()),
            sum(obvious.values()),
        )


def test_a_value_ends_at_its_time() -> None:
    clock = StoppedClock()
    cache: TtlCache[str, int] = TtlCache(clock, 1.0, 10)
    cache.put("a", 1)
    cache.put("b", 2, lasts_s=0.5)
    clock.ms += 499
    assert (cache.get("a"), cache.get("b")) == (1, 2)
    clock.ms += 1
    assert (cache.get("a"), cache.get("b")) == (1, None)
    clock.ms += 500
    assert (cache.get("a"), "a" in cache, len(cache)) == (None, False, 2)


def test_expired_values_leave_with_the_next_one_that_comes() -> None:
    clock = StoppedClock()
    cache: TtlCache[str, int] = TtlCache(clock, 1.0, 10)
    for key in "abc":
        cache.put(key, 1)
    clock.ms += 1_000
    cache.put("d", 1)
    assert len(cache) == 1


def test_what_is_found_says_until_when() -> None:
    clock = StoppedClock()
    cache: TtlCache[str, None] = TtlCache(clock, 1.0, 10)
    until_s = clock.monotonic_s() + 7
    cache.put("a", None, until_s=until_s)
    assert (cache.find("a"), cache.find("b")) == ((None, until_s), None)
    cache.pop("a")
    assert cache.find("a") is None


def test_kept_values_are_bounded_by_size() -> None:
    cache: TtlCache[str, bytes] = TtlCache(StoppedClock(), 1.0, 5, len)
    for key in "abc":
        cache.put(key, b"12")
    assert [key for key in "abc" if key in cache] == ["b", "c"]
