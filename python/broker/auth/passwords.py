"""Password hashes: Argon2id (RFC 9106) in dedicated threads, so that no event loop waits.

Log-ins, new passwords and passwords in requests with an idempotency key share the threads, each of which has
the memory of one hash. They take turns by account, and within an account by address: whoever sends a hundred
wrong passwords delays a log-in from elsewhere by one of them.
"""

import asyncio
import unicodedata
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from argon2 import PasswordHasher, Type
from argon2.exceptions import InvalidHashError, VerificationError

from broker.concurrency.shares import NOBODY, Asker, Shares
from broker.concurrency.turns import Turns
from broker.domain.users import MAX_PASSWORD_CHARACTERS
from broker.errors import InvalidRequest

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PasswordConfig:
    """What a hash costs, and how many may be in the making.

    The defaults are the first choice of OWASP's password storage cheat sheet; 45 ms on the 2-core machine
    where this was measured, so that a burst of log-ins leaves the processor to the show.

    Attributes:
        memory_kib: memory of one hash.
        time_cost: passes over it.
        threads: hashes in the making at one time; each is one thread.
        waiting: how many may wait for one of them. One address may have a third of it, which is 5 seconds'
            worth, and one account half (`Shares`). More are refused with `Unavailable`.
    """

    memory_kib: int = 19_456
    time_cost: int = 2
    threads: int = 2
    waiting: int = 600


class Passwords:
    """Makes and checks hashes. Use from one event loop; `close` ends the threads."""

    def __init__(self, config: PasswordConfig | None = None) -> None:
        config = config or PasswordConfig()
        self._hasher = PasswordHasher(
            time_cost=config.time_cost, memory_cost=config.memory_kib, parallelism=1, type=Type.ID
        )
        self._threads = ThreadPoolExecutor(config.threads, thread_name_prefix="argon2")
        self._most = config.waiting
        self._waiting = Shares(config.waiting, "too many log-ins at once; try again")
        self._turns = Turns(config.threads, self._waiting)

    @property
    def waiting(self) -> int:
        """How many wait for a thread."""
        return self._most - self._waiting.free

    async def hash(self, password: str, salt: bytes | None = None, *, asker: Asker = NOBODY) -> str:
        """The encoded hash, parameters and salt included. Without `salt` no two are equal.

        Raises:
            InvalidRequest: the password is empty, too long, or no Unicode text.
            Unavailable: too many are waiting.
        """
        encoded = _encode(password)
        return await self._run(lambda: self._hasher.hash(encoded, salt=salt), asker)

    async def verify(
        self,
        stored: str | None,
        password: str,
        admit: Callable[[], Awaitable[None]] | None = None,
        *,
        asker: Asker = NOBODY,
    ) -> bool:
        """Whether `password` is the one that was hashed to `stored`.

        None stands for a user that does not exist: the answer is no, after as much work as for one that does.
        Raises as `hash` does, and what `admit` raises, which is asked when the check's turn has come: of many
        that wait, those that may not be checked any more cost nothing.
        """
        encoded = _encode(password)
        matches = await self._run(lambda: self._matches(stored or self._nobodys, encoded), asker, admit)
        return matches and stored is not None

    def is_outdated(self, stored: str) -> bool:
        """Whether the hash was made with other parameters than a new one would be."""
        return self._hasher.check_needs_rehash(stored)

    def close(self) -> None:
        """End the threads once they have finished what they are at. Idempotent."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    @cached_property
    def _nobodys(self) -> str:
        """A hash with the present parameters that no password is known for."""
        return self._hasher.hash(b"")

    def _matches(self, stored: str, encoded: bytes) -> bool:
        try:
            return self._hasher.verify(stored, encoded)
        except (VerificationError, InvalidHashError):
            return False

    async def _run(
        self, work: Callable[[], T], asker: Asker, admit: Callable[[], Awaitable[None]] | None = None
    ) -> T:
        async with self._turns.held(asker):
            if admit is not None:
                await admit()
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _encode(password: str) -> bytes:
    if not 1 <= len(password) <= MAX_PASSWORD_CHARACTERS:
        raise InvalidRequest.of_field("password", f"must be 1 to {MAX_PASSWORD_CHARACTERS} characters")
    try:
        # Keyboards differ in how they compose letters (RFC 8265, section 4.2.2).
        return unicodedata.normalize("NFC", password).encode()
    except UnicodeEncodeError:
        raise InvalidRequest.of_field("password", "must be Unicode text") from None
