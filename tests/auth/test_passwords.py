import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from argon2 import PasswordHasher
from hypothesis import given
from hypothesis import strategies as st

from broker.auth import passwords as module
from broker.auth.passwords import PasswordConfig, Passwords
from broker.concurrency.shares import Asker
from broker.errors import InvalidRequest, Unavailable

pytestmark = pytest.mark.anyio

CHEAP = PasswordConfig(memory_kib=8, time_cost=1)


@pytest.fixture
async def passwords() -> AsyncIterator[Passwords]:
    passwords = Passwords(CHEAP)
    yield passwords
    passwords.close()


async def test_the_password_matches_its_hash_and_no_other_does(passwords: Passwords) -> None:
    stored = await passwords.hash("correct horse")
    assert await passwords.verify(stored, "correct horse")
    assert not await passwords.verify(stored, "correct horsf")


async def test_hashes_are_argon2id_and_salted(passwords: Passwords) -> None:
    first, second = await passwords.hash("same"), await passwords.hash("same")
    assert first.startswith("$argon2id$v=19$m=8,t=1,p=1$")
    assert first != second
    assert "same" not in first


async def test_default_parameters_are_those_that_owasp_recommends() -> None:
    passwords = Passwords()
    stored = await passwords.hash("x")
    passwords.close()
    assert stored.startswith("$argon2id$v=19$m=19456,t=2,p=1$")


async def test_unknown_user_is_refused_after_a_real_verification(
    passwords: Passwords, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified: list[str] = []
    hasher = passwords._hasher
    whole = type(hasher).verify

    def verify(self: object, stored: str, password: bytes) -> bool:
        verified.append(stored)
        return whole(hasher, stored, password)

    monkeypatch.setattr(type(hasher), "verify", verify)
    assert not await passwords.verify(None, "anything")
    assert len(verified) == 1
    assert verified[0].startswith("$argon2id$v=19$m=8,t=1,p=1$")


async def test_composed_and_decomposed_letters_are_one_password(passwords: Passwords) -> None:
    stored = await passwords.hash("caf\u00e9 1234")
    assert await passwords.verify(stored, "cafe\u0301 1234")


@pytest.mark.parametrize(("length", "fits"), [(0, False), (1, True), (1000, True), (1001, False)])
async def test_length_has_bounds(passwords: Passwords, length: int, fits: bool) -> None:
    if fits:
        assert await passwords.verify(await passwords.hash("x" * length), "x" * length)
        return
    with pytest.raises(InvalidRequest) as caught:
        await passwords.hash("x" * length)
    assert caught.value.faults[0].field == "password"


async def test_text_that_is_no_unicode_is_a_fault_of_the_field(passwords: Passwords) -> None:
    with pytest.raises(InvalidRequest, match="password: must be Unicode text"):
        await passwords.hash("\ud800" * 8)


async def test_broken_stored_hash_matches_nothing(passwords: Passwords) -> None:
    assert not await passwords.verify("nonsense", "nonsense")


async def test_only_hashes_of_other_parameters_are_outdated(passwords: Passwords) -> None:
    other = Passwords(PasswordConfig(memory_kib=16, time_cost=1))
    assert not passwords.is_outdated(await passwords.hash("x"))
    assert passwords.is_outdated(await other.hash("x"))
    other.close()


async def test_more_than_may_wait_are_refused_and_the_loop_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    passwords = Passwords(PasswordConfig(memory_kib=8, time_cost=1, threads=1, waiting=1))
    gate = threading.Event()
    monkeypatch.setattr(PasswordHasher, "hash", lambda *_, **__: str(gate.wait(10)))
    first, second = asyncio.create_task(passwords.hash("a")), asyncio.create_task(passwords.hash("b"))
    await asyncio.sleep(0)
    with pytest.raises(Unavailable) as caught:
        await passwords.hash("c")
    assert caught.value.retry_after_s == 1
    gate.set()
    assert list(await asyncio.gather(first, second)) == ["True", "True"]
    assert await passwords.hash("d") == "True"
    passwords.close()


async def order(askers: list[Asker], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The places in `askers`, in the order in which their passwords are hashed who have all asked before."""
    passwords, gate, hashed = Passwords(replace(CHEAP, threads=1)), threading.Event(), list[int]()

    def record(_self: object, password: bytes, **_: object) -> str:
        assert gate.wait(10)
        hashed.append(int(password))
        return ""

    monkeypatch.setattr(PasswordHasher, "hash", record)
    waiting = [asyncio.create_task(passwords.hash("-1"))]
    waiting += [
        asyncio.create_task(passwords.hash(str(number), asker=asker)) for number, asker in enumerate(askers)
    ]
    await asyncio.sleep(0)
    assert passwords.waiting == len(askers)
    gate.set()
    await asyncio.gather(*waiting)
    passwords.close()
    return hashed[1:]


@pytest.mark.parametrize("late", [Asker("demo", "192.0.2.2"), Asker("other", "192.0.2.1")])
async def test_many_of_one_address_delay_another_by_one(late: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    many = [Asker("demo", "192.0.2.1")] * 60 + [Asker("third", "192.0.2.1")] * 20
    assert (await order([*many, late], monkeypatch)).index(80) <= 2


async def test_one_address_leaves_others_room_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    greedy, gate = Asker("demo", "192.0.2.1"), threading.Event()
    passwords = Passwords(replace(CHEAP, threads=1, waiting=30))
    monkeypatch.setattr(PasswordHasher, "hash", lambda *_, **__: str(gate.wait(10)))
    waiting = [asyncio.create_task(passwords.hash("a", asker=greedy)) for _ in range(1 + 10)]
    await asyncio.sleep(0)
    with pytest.raises(Unavailable) as caught:
        await passwords.hash("a", asker=greedy)
    assert caught.value.retry_after_s == 1
    waiting.append(asyncio.create_task(passwords.hash("a", asker=Asker("demo", "192.0.2.2"))))
    await asyncio.sleep(0)
    assert passwords.waiting == 11
    gate.set()
    assert set(await asyncio.gather(*waiting)) == {"True"}
    assert passwords.waiting == 0
    passwords.close()


@given(st.text(min_size=1, max_size=30))
def test_every_text_is_a_password_or_a_fault(text: str) -> None:
    try:
        encoded = module._encode(text)
    except InvalidRequest:
        return
    assert encoded
