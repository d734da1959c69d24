"""A rush of log-ins is bounded by Argon2, in threads of its own, and everybody else is served meanwhile."""

import asyncio
import threading
from collections.abc import AsyncIterator

import httpx
import pytest
from argon2 import PasswordHasher

from tests.auth.services import PASSWORD
from tests.product import Product, open_product

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

LOG_INS, THREADS = 20, 2
GIVES_UP_S = 30.0  # only when the test fails


@pytest.fixture
async def product(migrated_dsn: str) -> AsyncIterator[Product]:
    async with open_product(migrated_dsn) as product:
        yield product


class SlowArgon2:
    """Holds every verification until it is let go, and counts those that are held at one time."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.started: list[str] = []
        self._verify = PasswordHasher.verify

    def verify(self, hasher: PasswordHasher, stored: str, password: bytes) -> bool:
        self.started.append(threading.current_thread().name)
        assert self.released.wait(GIVES_UP_S), "nothing went on while a password was verified"
        return self._verify(hasher, stored, password)


@pytest.fixture
def argon2(monkeypatch: pytest.MonkeyPatch) -> SlowArgon2:
    slow = SlowArgon2()
    monkeypatch.setattr(PasswordHasher, "verify", lambda *arguments: slow.verify(*arguments))
    return slow


async def log_in(product: Product) -> httpx.Response:
    body = {"grant_type": "password", "client_id": "Test", "username": "user", "password": PASSWORD}
    async with product.door(None) as door:
        return await door.post("/token", json=body)


async def test_others_are_served_while_all_log_ins_wait(product: Product, argon2: SlowArgon2) -> None:
    await product.make_program("live")
    log_ins = [asyncio.create_task(log_in(product)) for _ in range(LOG_INS)]
    async with product.door() as door, asyncio.timeout(GIVES_UP_S):
        for _ in range(LOG_INS):
            assert (await door.post("/servertime", json={})).status_code == 200
            assert (await door.post("/programs/live/events", json={"event": "A#b"})).status_code == 201
            assert (await door.get("/users/me")).status_code == 200
    assert [task for task in log_ins if task.done()] == []
    assert len(argon2.started) == THREADS
    argon2.released.set()
    assert {answer.status_code for answer in await asyncio.gather(*log_ins)} == {200}
    assert len(argon2.started) == LOG_INS
    assert len(set(argon2.started)) == THREADS
    assert [name for name in argon2.started if not name.startswith("argon2")] == []
