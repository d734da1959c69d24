"""The signing keys: which one signs, which ones verify, and how they rotate.

A new key is announced before it signs: for `announce_s` every process (each reads the table at least every
few seconds, and every reader of the JWKS document within its cache time) learns to verify it while the key
before still signs. That one then signs nothing more and verifies until the last token it signed has ended.
So a rotation logs nobody out and no process meets a token that it cannot check; where one does (it was cut
off from the database), it reads the table again, at most once a second.

A key that may have leaked is revoked instead: what it signed is worth nothing from the next reading of the
table on, which a notification begins at once. Another key signs without having been announced.
"""

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import orjson
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from broker.clock import Clock
from broker.concurrency.single_flight import SingleFlight
from broker.domain.audit import Actor
from broker.storage.keys import Keys, StoredKey


@dataclass(frozen=True, slots=True)
class KeyringConfig:
    """Times of the keys, in seconds.

    Attributes:
        token_lifetime_s: how long a token lives that a key signs in its last moment.
        announce_s: how long a new key is known before it signs.
        rotate_s: age at which the signing key is replaced by itself.
        refresh_s: shortest time between two readings of the table for unknown keys.
        slack_s: how far clocks and readings of the processes may be apart.
    """

    token_lifetime_s: int
    announce_s: float = 60.0
    rotate_s: float = 30 * 86_400.0
    refresh_s: float = 1.0
    slack_s: float = 60.0


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A key pair that is ready for use; times as in `StoredKey`."""

    kid: str
    public: Ed25519PublicKey
    private: Ed25519PrivateKey = field(repr=False)
    created_ms: int
    retired_ms: int | None

    def jwk(self) -> dict[str, str]:
        """The public half (RFC 8037, section 2)."""
        return {**_public_jwk(self.public), "kid": self.kid, "use": "sig", "alg": "EdDSA"}


class KeyState(StrEnum):
    """What a key is for at the moment."""

    ANNOUNCED = "announced"
    """Signs soon, and every process knows it by then."""
    SIGNING = "signing"
    VERIFYING = "verifying"
    """Signs no more; what it has signed is good until it ends."""
    REVOKED = "revoked"
    ENDED = "ended"
    """Nothing that it has signed can still be good; it is deleted soon."""


@dataclass(frozen=True, slots=True)
class KeyStatus:
    """A key as operators see it; times in milliseconds since the epoch.

    `ends_ms` is from when it verifies nothing, None while that is not settled.
    """

    kid: str
    state: KeyState
    created_ms: int
    ends_ms: int | None


class Keyring:
    """The keys as this process knows them."""

    def __init__(self, keys: Keys, clock: Clock, config: KeyringConfig) -> None:
        self._keys = keys
        self._clock = clock
        self._config = config
        self._by_kid: dict[str, SigningKey] = {}  # those that are not revoked
        self._revoked: set[str] = set()
        self._revocation_callbacks: list[Callable[[str], None]] = []
        self._refreshed_s: float | None = None
        self._single_flight: SingleFlight[str, None] = SingleFlight()

    async def signing(self) -> SigningKey:
        """The key to sign with; made when there is none. Raises Unavailable."""
        key = self._choose()
        if key is None:
            await self._single_flight.run("ensure", self._ensure)
            key = self._choose()
        assert key is not None, "a key was made or found; one that nobody retired signs"
        return key

    async def find(self, kid: str) -> Ed25519PublicKey | None:
        """The key that verifies tokens with this `kid`, or None. Raises Unavailable."""
        if kid not in self._by_kid and kid not in self._revoked and self._may_refresh():
            await self.refresh()
        key = self._by_kid.get(kid)
        if key is None or self._is_over(key):
            return None
        return key.public

    async def jwks(self) -> dict[str, Any]:
        """The JWKS document (RFC 7517, section 5) of every key that verifies, oldest first."""
        await self.signing()
        return {"keys": [key.jwk() for key in self._by_kid.values() if not self._is_over(key)]}

    async def secret(self, purpose: str) -> bytes:
        """32 bytes that all processes share, different for each purpose; they change with the signing key."""
        private = (await self.signing()).private.private_bytes_raw()
        return hashlib.blake2b(purpose.encode(), digest_size=32, key=private).digest()

    def is_revoked(self, kid: str | None) -> bool:
        """Whether the key is known to be revoked; a look-up in memory."""
        return kid in self._revoked

    def on_revocation(self, callback: Callable[[str], None]) -> None:
        """Call `callback(kid)` once for each key whose revocation is learnt from now on, without blocking."""
        self._revocation_callbacks.append(callback)

    async def list(self) -> list[KeyStatus]:
        """All keys, revoked ones too, oldest first. Raises Unavailable."""
        rows = await self._keys.list()
        self._learn(rows)
        signing = self._choose()
        place = next((at for at, row in enumerate(rows) if signing and row.kid == signing.kid), len(rows))
        return [self._status(row, at - place) for at, row in enumerate(rows)]

    async def revoke(self, kids: Sequence[str], by: Actor) -> Sequence[str]:
        """End keys and all that they have signed; another one signs at once. Raises Unavailable.

        Returns:
            Those of `kids` that were there and had not been revoked.
        """
        now_ms = self._clock.now_ms()
        revoked = await self._keys.revoke(kids, generate(now_ms), at_ms=now_ms, by=by)
        await self.refresh()
        return revoked

    async def rotate(self, by: Actor | None = None) -> None:
        """Announce a new key, however old the present one is. Raises Unavailable."""
        await self._replace(if_older_than_ms=self._clock.now_ms() + 1, by=by)

    async def rotate_if_old(self) -> None:
        """Announce a new key if the present one has served its time; of several processes one does it."""
        limit_ms = self._clock.now_ms() - int(self._config.rotate_s * 1000)
        newest = max((key.created_ms for key in self._by_kid.values()), default=None)
        if newest is not None and newest < limit_ms:
            await self._replace(if_older_than_ms=limit_ms)

    async def purge(self) -> None:
        """Delete keys that verify nothing any more."""
        await self._keys.purge(self._clock.now_ms() - self._verifies_ms())

    async def refresh(self) -> None:
        """Read the table again. Raises Unavailable."""
        await self._single_flight.run("refresh", self._refresh)

    async def close(self) -> None:
        """End readings that are under way."""
        await self._single_flight.close()

    async def _refresh(self) -> None:
        started_s = self._clock.monotonic_s()
        self._learn(await self._keys.list())
        self._refreshed_s = started_s

    def _learn(self, rows: Sequence[StoredKey]) -> None:
        revoked = [row.kid for row in rows if row.revoked_ms is not None and row.kid not in self._revoked]
        # What is revoked stays so: readings can cross.
        self._revoked.update(revoked)
        known = self._by_kid
        self._by_kid = {
            row.kid: _open(row, known.get(row.kid)) for row in rows if row.kid not in self._revoked
        }
        for kid in revoked:
            for callback in self._revocation_callbacks:
                callback(kid)

    def _status(self, row: StoredKey, behind: int) -> KeyStatus:
        """Args: behind: how many places behind the signing key; negative before it."""
        ends_ms = None if row.retired_ms is None else row.retired_ms + self._verifies_ms()
        if row.revoked_ms is not None:
            return KeyStatus(row.kid, KeyState.REVOKED, row.created_ms, row.revoked_ms)
        if ends_ms is not None and self._clock.now_ms() >= ends_ms:
            state = KeyState.ENDED
        elif behind == 0:
            state = KeyState.SIGNING
        else:
            state = KeyState.ANNOUNCED if behind > 0 else KeyState.VERIFYING
        return KeyStatus(row.kid, state, row.created_ms, ends_ms)

    async def _ensure(self) -> None:
        await self._refresh()
        if self._choose() is None:
            # Nobody waits for an announced key where there is none before it.
            await self._add(retire_ms=self._clock.now_ms(), if_older_than_ms=0)

    async def _replace(self, *, if_older_than_ms: int, by: Actor | None = None) -> None:
        retire_ms = self._clock.now_ms() + int(self._config.announce_s * 1000)
        await self._add(retire_ms=retire_ms, if_older_than_ms=if_older_than_ms, by=by)

    async def _add(self, *, retire_ms: int, if_older_than_ms: int, by: Actor | None = None) -> None:
        key = generate(self._clock.now_ms())
        await self._keys.add(key, retire_ms=retire_ms, if_older_than_ms=if_older_than_ms, by=by)
        await self._refresh()

    def _choose(self) -> SigningKey | None:
        """The newest key that has been announced for long enough, else the oldest; none that is retired."""
        now_ms = self._clock.now_ms()
        live = [key for key in self._by_kid.values() if key.retired_ms is None or now_ms < key.retired_ms]
        announced_ms = now_ms - self._config.announce_s * 1000
        ready = [key for key in live if key.created_ms <= announced_ms]
        return ready[-1] if ready else live[0] if live else None

    def _is_over(self, key: SigningKey) -> bool:
        return key.retired_ms is not None and self._clock.now_ms() >= key.retired_ms + self._verifies_ms()

    def _verifies_ms(self) -> int:
        return int((self._config.token_lifetime_s + self._config.slack_s) * 1000)

    def _may_refresh(self) -> bool:
        since = self._refreshed_s
        return since is None or self._clock.monotonic_s() - since >= self._config.refresh_s


def generate(now_ms: int) -> StoredKey:
    """A new key, whose id does not look like an option on a command line."""
    while True:
        private = Ed25519PrivateKey.generate()
        public = private.public_key()
        kid = _thumbprint(public)
        if not kid.startswith("-"):
            return StoredKey(kid, public.public_bytes_raw(), private.private_bytes_raw(), now_ms)


def _open(row: StoredKey, known: SigningKey | None) -> SigningKey:
    private = known.private if known else Ed25519PrivateKey.from_private_bytes(row.private_key)
    public = known.public if known else Ed25519PublicKey.from_public_bytes(row.public_key)
    return SigningKey(row.kid, public, private, row.created_ms, row.retired_ms)


def _public_jwk(public: Ed25519PublicKey) -> dict[str, str]:
    return {"crv": "Ed25519", "kty": "OKP", "x": _base64url(public.public_bytes_raw())}


def _thumbprint(public: Ed25519PublicKey) -> str:
    """The key's name by its content (RFC 7638; the members of RFC 8037, section 2, in order)."""
    return _base64url(hashlib.sha256(orjson.dumps(_public_jwk(public))).digest())


def _base64url(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()
