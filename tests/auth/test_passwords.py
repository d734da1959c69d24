import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
from argon2 import PasswordHasher
from hypothesis import given
from hypothesis import strategies as st

from broker.auth import passwords as module
from broker.auth.passwords import PasswordConfig, Passwords
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


@given(st.text(min_size=1, max_size=30))
def test_every_text_is_a_password_or_a_fault(text: str) -> None:
    try:
        encoded = module._encode(text)
    except InvalidRequest:
        return
    assert encoded
