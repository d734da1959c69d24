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
    """Holds every verification until it is let go, counts those that are held, and notes all passwords."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.started: list[str] = []
        self.passwords: list[bytes] = []
        self._hash = PasswordHasher.hash
        self._verify = PasswordHasher.verify

    def hash(self, hasher: PasswordHasher, password: bytes, salt: bytes | None = None) -> str:
        self.passwords.append(password)
        return self._hash(hasher, password, salt=salt)

    def verify(self, hasher: PasswordHasher, stored: str, password: bytes) -> bool:
        self.started.append(threading.current_thread().name)
        self.passwords.append(password)
        assert self.released.wait(GIVES_UP_S), "nothing went on while a password was verified"
        return self._verify(hasher, stored, password)


@pytest.fixture
def argon2(monkeypatch: pytest.MonkeyPatch) -> SlowArgon2:
    slow = SlowArgon2()
    monkeypatch.setattr(PasswordHasher, "hash", lambda *given, **named: slow.hash(*given, **named))
    monkeypatch.setattr(PasswordHasher, "verify", lambda *arguments: slow.verify(*arguments))
    return slow


async def log_in(
    product: Product,
    password: str = PASSWORD,
    *,
    address: str = "192.0.2.1",
    account: str = "demo",
    username: str = "user",
) -> httpx.Response:
    body = {"grant_type": "password", "client_id": "Test", "username": username, "password": password}
    headers = {"X-Forwarded-For": address}
    async with product.door(None, account=account, **headers) as door:
        return await door.post("/token", json=body)


async def until_waiting(product: Product, count: int) -> None:
    """Until so many wait for a thread."""
    async with asyncio.timeout(GIVES_UP_S):
        while True:
            (sample,) = product.services.auth.figures()
            if sample.value == count:
                return
            await asyncio.sleep(0.01)


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


@pytest.mark.parametrize(
    ("address", "account", "path"),
    [("192.0.2.2", "demo", "/token"), ("192.0.2.1", "other", "/token"), ("192.0.2.2", "demo", "/users")],
    ids=["another address", "another account", "a new password"],
)
async def test_wrong_log_ins_of_one_address_delay_others_by_one(
    product: Product, argon2: SlowArgon2, address: str, account: str, path: str
) -> None:
    async def late() -> int:
        if path == "/token":
            return (await log_in(product, address=address, account=account)).status_code
        user = {"username": "late", "password": PASSWORD, "role": "user"}
        async with product.door(**{"X-Forwarded-For": address}) as door:
            return (await door.post("/users", json=user)).status_code

    wrong = [asyncio.create_task(log_in(product, "wrong", username="admin")) for _ in range(LOG_INS)]
    await until_waiting(product, LOG_INS - THREADS)
    right = asyncio.create_task(late())
    await until_waiting(product, LOG_INS - THREADS + 1)
    argon2.released.set()
    assert await right in (200, 201)
    assert {answer.status_code for answer in await asyncio.gather(*wrong)} == {401, 429}
    # After those that had begun, and one whose turn it was. On a busy machine its thread may wait for a
    # processor while the other thread goes on; without turns it would be behind all of them.
    assert argon2.passwords.index(PASSWORD.encode()) < LOG_INS // 2
    assert len(argon2.passwords) > THREADS + 3
