"""`broker.operations.list_turns`: who reads next, how many wait, and what happens to a document half-way."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from broker.domain.users import Principal, Role
from broker.errors import Unavailable
from broker.operations.list_turns import WAITING, ListTurns
from broker.operations.results import Stream

pytestmark = pytest.mark.anyio

ANYBODY = Principal("demo")


def user(name: str, account: str = "demo") -> Principal:
    return Principal(account, Role.ADMIN, name)


def waiting(turns: ListTurns) -> int:
    return sum(int(sample.value) for sample in turns.figures())


async def order(askers: list[tuple[Principal, str]]) -> list[int]:
    """The places in `askers`, in the order in which they are served who have all asked at one time."""
    turns, served = ListTurns(2, 10.0), list[int]()

    async def read(number: int, principal: Principal, address: str) -> None:
        async with turns.held(principal, address):
            served.append(number)

    async with asyncio.TaskGroup() as tasks, turns.held(user("first"), ""):
        for number, asker in enumerate(askers):
            tasks.create_task(read(number, *asker))
        await asyncio.sleep(0)
        assert waiting(turns) == len(askers)
    return served


@pytest.mark.parametrize(("pool", "most"), [(1, 1), (2, 1), (8, 4), (9, 4)])
async def test_half_of_the_pool_is_read_with(pool: int, most: int) -> None:
    assert ListTurns(pool, 1.0).most == most


async def test_another_account_waits_for_one_list_only() -> None:
    greedy = [(user("a"), "192.0.2.1")] * 50
    assert (await order([*greedy, (user("b", "other"), "192.0.2.1")])).index(50) == 1


async def test_another_user_of_the_account_waits_for_one_list_only() -> None:
    greedy = [(user("a"), "192.0.2.1")] * 50
    assert (await order([*greedy, (user("b"), "192.0.2.1")])).index(50) == 1


async def test_another_address_without_a_token_waits_for_one_list_only() -> None:
    greedy = [(ANYBODY, "192.0.2.1")] * 50
    assert (await order([*greedy, (ANYBODY, "192.0.2.2")])).index(50) == 1


async def test_one_too_many_is_told_to_come_again_and_others_still_wait() -> None:
    turns = ListTurns(2, 10.0)

    async def read(principal: Principal, address: str) -> None:
        async with turns.held(principal, address):
            pass

    async with asyncio.TaskGroup() as tasks, turns.held(user("first"), ""):
        greedy = [tasks.create_task(read(ANYBODY, "192.0.2.1")) for _ in range(WAITING // 3)]
        await asyncio.sleep(0)
        assert waiting(turns) == len(greedy)
        with pytest.raises(Unavailable) as caught:
            await read(ANYBODY, "192.0.2.1")
        assert caught.value.retry_after_s == 1
        tasks.create_task(read(ANYBODY, "192.0.2.2"))
        await asyncio.sleep(0)
        assert waiting(turns) == len(greedy) + 1
    assert waiting(turns) == 0


async def test_who_waits_too_long_is_told_to_come_again() -> None:
    turns = ListTurns(2, 0.0)
    async with turns.held(user("a"), ""):
        with pytest.raises(Unavailable) as caught:
            async with turns.held(user("b"), ""):
                raise AssertionError("there is no turn")
    assert caught.value.retry_after_s == 1
    assert waiting(turns) == 0


async def test_a_document_has_a_turn_while_a_page_is_read_and_none_while_it_is_sent() -> None:
    turns, closed = ListTurns(2, 0.0), False

    async def is_free() -> bool:
        try:
            async with turns.held(user("b"), ""):
                return True
        except Unavailable:
            return False

    async def pages() -> AsyncGenerator[bytes]:
        nonlocal closed
        try:
            for _ in range(3):
                yield b"busy" if not await is_free() else b"free"
        finally:
            closed = True

    paced = turns.paced(Stream(pages()), user("a"), "")
    assert isinstance(paced, Stream)
    read = []
    async for chunk in paced.chunks:
        read.append(chunk)
        assert await is_free()
        if len(read) == 2:
            break
    assert read == [b"busy", b"busy"]
    await paced.close()
    assert closed
    assert await is_free()


async def test_a_document_that_has_begun_is_not_refused() -> None:
    turns = ListTurns(2, 0.0)

    async def pages() -> AsyncGenerator[bytes]:
        yield b"first"
        yield b"second"

    paced = turns.paced(Stream(pages()), user("a"), "")
    assert isinstance(paced, Stream)
    chunks = aiter(paced.chunks)
    assert await anext(chunks) == b"first"
    async with turns.held(user("b"), ""):
        second = asyncio.ensure_future(anext(chunks))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not second.done()
    assert await second == b"second"
    await paced.close()
