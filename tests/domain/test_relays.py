"""`broker.domain.relays`: who relays, and who follows whom."""

from collections import Counter
from math import isqrt

from hypothesis import given
from hypothesis import strategies as st

from broker.domain.relays import choose_relays, rank_relays


def upstreams(gateways: set[str], relay_from: int = 1) -> dict[str, str]:
    """The first choice of each gateway."""
    relays = choose_relays(gateways, relay_from)
    return {gateway: rank_relays(gateway, relays)[0] for gateway in gateways}


def crowds(least: int, most: int) -> st.SearchStrategy[set[str]]:
    """Names as gateways have them: random, and not chosen by who wants to be a relay."""
    seeds = st.integers(0, 1_000_000)
    return st.builds(
        lambda seed, count: {f"gateway-{seed}-{number}" for number in range(count)},
        seeds,
        st.integers(least, most),
    )


@given(crowds(0, 100), st.integers(0, 120))
def test_nobody_relays_below_the_number_or_where_it_is_zero(gateways: set[str], relay_from: int) -> None:
    relays = choose_relays(gateways, relay_from)
    assert bool(relays) == (relay_from > 0 and len(gateways) >= relay_from)


@given(crowds(1, 300))
def test_every_gateway_follows_a_relay_and_no_relay_follows_another(gateways: set[str]) -> None:
    relays = set(choose_relays(gateways, 1))
    chosen = upstreams(gateways)
    assert set(chosen.values()) <= relays <= gateways
    assert {gateway: relay for gateway, relay in chosen.items() if gateway in relays} == {
        relay: relay for relay in relays
    }


@given(crowds(1, 300))
def test_the_choice_does_not_depend_on_the_order_of_the_list(gateways: set[str]) -> None:
    assert choose_relays(sorted(gateways), 1) == choose_relays(sorted(gateways, reverse=True), 1)


@given(crowds(64, 1_000))
def test_there_are_as_many_relays_as_the_root_and_none_has_three_times_its_share(gateways: set[str]) -> None:
    relays = choose_relays(gateways, 64)
    assert (len(relays) - 1) ** 2 < len(gateways) <= len(relays) ** 2
    loads = Counter(upstreams(gateways, 64).values())
    assert set(loads) == set(relays)
    assert max(loads.values()) <= 3 * len(gateways) / len(relays)


@given(crowds(64, 600))
def test_few_change_when_a_gateway_comes_or_goes(gateways: set[str]) -> None:
    """A relay and its followers at most, twice: one that comes may take the place of another."""
    before = upstreams(gateways, 64)
    after = upstreams(gateways | {"gateway-new"}, 64)
    changed = sum(before[gateway] != after[gateway] for gateway in gateways)
    assert changed <= 2 * 3 * (isqrt(len(gateways)) + 1)


@given(crowds(64, 300))
def test_followers_of_a_relay_that_goes_are_spread_over_the_others(gateways: set[str]) -> None:
    relays = choose_relays(gateways, 64)
    gone = relays[0]
    orphans = [gateway for gateway, relay in upstreams(gateways, 64).items() if relay == gone != gateway]
    seconds = Counter(rank_relays(gateway, relays)[1] for gateway in orphans)
    assert gone not in seconds
    if len(orphans) > 4:
        assert len(seconds) > 1


def test_ten_thousand_gateways_are_fed_by_a_hundred() -> None:
    gateways = {f"gateway-{number}" for number in range(10_000)}
    loads = Counter(upstreams(gateways, 64).values())
    assert len(loads) == 100
    assert max(loads.values()) <= 150
