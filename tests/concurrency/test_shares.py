"""`broker.concurrency.shares`: how much of something one of many may hold."""

import pytest

from broker.concurrency.shares import Asker, Shares
from broker.errors import Unavailable


def take_all(shares: Shares, asker: Asker) -> int:
    taken = 0
    while True:
        try:
            shares.take(asker)
        except Unavailable:
            return taken
        taken += 1


def test_one_account_gets_half_and_two_get_a_third() -> None:
    shares = Shares(120, "full")
    assert take_all(shares, Asker("a")) == 60
    assert take_all(shares, Asker("b")) == 30
    assert take_all(shares, Asker("c")) == 15
    assert shares.free == 15
    shares.give_back(Asker("a"), 60)
    assert take_all(shares, Asker("c")) == 30
    assert take_all(shares, Asker("a")) == 23


def test_one_address_leaves_room_for_others_of_its_account() -> None:
    shares = Shares(120, "full")
    assert take_all(shares, Asker("a", "192.0.2.1")) == 40
    assert take_all(shares, Asker("b", "192.0.2.1")) == 0, "however many accounts it names"
    assert take_all(shares, Asker("a", "192.0.2.2")) == 20


def test_what_is_held_is_given_back_also_after_an_error() -> None:
    shares = Shares(10, "full")
    with pytest.raises(ZeroDivisionError), shares.held(Asker("a", "192.0.2.1"), 3):
        assert shares.free == 7
        raise ZeroDivisionError
    assert shares.free == 10
    assert take_all(shares, Asker("a")) == 5


def test_more_than_there_is_is_never_given() -> None:
    shares = Shares(10, "full")
    with pytest.raises(Unavailable, match="full") as refused:
        shares.take(Asker("a"), 11)
    assert refused.value.retry_after_s == 1
    shares.take(Asker("a"), 10)
    assert shares.free == 0


def test_strangers_who_hold_nothing_are_forgotten() -> None:
    shares = Shares(4, "full")
    shares.take(Asker("a"), 4)
    for at in range(100):
        with pytest.raises(Unavailable):
            shares.take(Asker(f"account-{at}", f"192.0.2.{at}"))
    shares.give_back(Asker("a"), 4)
    for at in range(100):
        with shares.held(Asker(f"account-{at}", f"192.0.2.{at}")):
            pass
    assert not shares._accounts
    assert not shares._addresses
