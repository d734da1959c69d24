"""`broker.concurrency.turns`: who comes next."""

import asyncio

import pytest

from broker.concurrency.shares import Asker, Shares
from broker.concurrency.turns import Turns, TurnsByKey
from broker.errors import Unavailable


def order(askers: list[Asker], *, places: int = 1) -> list[Asker]:
    """In which order they are let in who have all asked while the places were taken."""
    served: list[Asker] = []

    async def go() -> None:
        turns = Turns(places, Shares(1_000, "full"))
        is_open = asyncio.Event()

        async def hold() -> None:
            async with turns.held(Asker("first")):
                await is_open.wait()

        async def ask(asker: Asker) -> None:
            async with turns.held(asker):
                served.append(asker)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(places):
                tasks.create_task(hold())
            for asker in askers:
                tasks.create_task(ask(asker))
            await asyncio.sleep(0)
            assert not served
            is_open.set()
        async with turns.held(Asker("last")):
            pass

    asyncio.run(go())
    return served


def test_accounts_take_turns() -> None:
    asked = [Asker(name) for name in "aaaabbc"]
    assert "".join(asker.account for asker in order(asked)) == "abcabaa"


def test_addresses_of_an_account_take_turns() -> None:
    asked = [Asker("a", "1"), Asker("a", "1"), Asker("a", "1"), Asker("a", "2"), Asker("b", "3")]
    assert [asker.address for asker in order(asked)] == ["1", "3", "2", "1", "1"]


def test_several_places_serve_everybody() -> None:
    asked = [Asker(name) for name in "aaaabbc"]
    assert sorted(asker.account for asker in order(asked, places=3)) == list("aaaabbc")


def test_who_is_cancelled_while_waiting_takes_no_place() -> None:
    async def go() -> None:
        waiting = Shares(10, "full")
        turns = Turns(1, waiting)
        async with turns.held(Asker("a")):
            gone = asyncio.create_task(_pass(turns, Asker("b")))
            stays = asyncio.create_task(_pass(turns, Asker("c")))
            await asyncio.sleep(0)
            gone.cancel()
        await stays
        assert gone.cancelled()
        assert waiting.free == 10
        await _pass(turns, Asker("d"))

    asyncio.run(go())


def test_who_is_cancelled_when_called_hands_the_place_on() -> None:
    async def go() -> None:
        turns = Turns(1, Shares(10, "full"))
        async with turns.held(Asker("a")):
            called = asyncio.create_task(_pass(turns, Asker("b")))
            then = asyncio.create_task(_pass(turns, Asker("c")))
            await asyncio.sleep(0)
        called.cancel()
        await then
        await _pass(turns, Asker("d"))

    asyncio.run(go())


def test_more_than_may_wait_are_refused() -> None:
    async def go() -> None:
        turns = Turns(1, Shares(2, "full"))
        async with turns.held(Asker("a")):
            waits = asyncio.create_task(_pass(turns, Asker("a")))
            await asyncio.sleep(0)
            with pytest.raises(Unavailable, match="full"):
                await _pass(turns, Asker("a"))
        await waits

    asyncio.run(go())


def test_who_waits_too_long_is_refused_and_takes_no_place() -> None:
    async def go() -> None:
        waiting = Shares(10, "full")
        turns = Turns(1, waiting)
        async with turns.held(Asker("a")):
            stays = asyncio.create_task(_pass(turns, Asker("b")))
            with pytest.raises(Unavailable, match="full"):
                async with turns.held(Asker("c"), wait_s=0.01):
                    pass
            assert not stays.done()
        await stays
        assert waiting.free == 10
        await _pass(turns, Asker("d"))

    asyncio.run(go())


def test_keys_have_places_of_their_own_and_are_forgotten() -> None:
    async def go() -> None:
        turns = TurnsByKey(1, Shares(10, "full"))
        async with turns.held("a", Asker("x")):
            waits = asyncio.create_task(_pass_key(turns, "a"))
            await _pass_key(turns, "b")
            assert not waits.done()
        await waits
        assert not turns._turns

    asyncio.run(go())


async def _pass(turns: Turns, asker: Asker) -> None:
    async with turns.held(asker):
        pass


async def _pass_key(turns: TurnsByKey, key: str) -> None:
    async with turns.held(key, Asker("x")):
        pass
