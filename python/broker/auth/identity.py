"""Log-in with the token of an identity provider.

The account's provider is found by the token's issuer, its keys are read from the configured address and kept
for a while: they are read again when they are old, and when a token names a key that is not among them, so
that rotated keys count at once, but not more often than every half minute, so that tokens with made-up key
ids cost nothing. While the provider's server is unavailable, cached keys remain valid for an hour.

The user is the one that the subject was matched with before, else the only one with the verified e-mail
address, unless it gave itself that address: a claim of its own must not make a user another one. No users are
made here. Where roles are mapped, the provider's word sets the user's role; what it
does not map stays, and so does the role of the last admin.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import orjson

from broker.auth import identity_tokens, membership
from broker.clock import Clock
from broker.concurrency.caches import LruCache
from broker.concurrency.single_flight import SingleFlight
from broker.domain.audit import Actor
from broker.domain.identities import Identity
from broker.domain.users import User
from broker.errors import BrokerError, Conflict, Unavailable
from broker.storage.identity_providers import IdentityProviders, Match
from broker.storage.users import Users

FetchKeys = Callable[[str], Awaitable[bytes]]
"""Reads the document of a key set. Raises BrokerError if it cannot be fetched."""

_FRESH_S = 600.0
_USABLE_S = 3600.0
_RETRY_S = 30.0
_MAX_SETS = 1_000  # providers of all accounts of a process
_MAX_KEYS = 100  # of one set; the rest is not looked at
_RETRY_AFTER_S = 5


@dataclass(slots=True)
class _KeySet:
    keys: list[dict[str, Any]]
    read_s: float
    tried_s: float


class IdentityKeys:
    """The key sets of identity providers, by address; see the module's docstring."""

    def __init__(self, fetch: FetchKeys, clock: Clock) -> None:
        self._fetch = fetch
        self._clock = clock
        self._sets: LruCache[str, _KeySet] = LruCache(_MAX_SETS)
        self._single_flight: SingleFlight[str, None] = SingleFlight()

    async def close(self) -> None:
        """End what is under way."""
        await self._single_flight.close()

    async def find(self, url: str, algorithm: str, kid: str | None) -> Any | None:
        """The key, or None when the set at `url` has no such key. Raises Unavailable."""
        await self._refresh(url, _FRESH_S)
        key = self._known(url, algorithm, kid)
        if key is None:
            await self._refresh(url, _RETRY_S)
            key = self._known(url, algorithm, kid)
        return key

    def _known(self, url: str, algorithm: str, kid: str | None) -> Any | None:
        known = self._sets.get(url)
        return None if known is None else identity_tokens.find_key(known.keys, algorithm, kid)

    async def _refresh(self, url: str, max_age_s: float) -> None:
        """Have keys that are not older, as far as the provider's server lets us."""
        now_s = self._clock.monotonic_s()
        known = self._sets.get(url)
        if known is not None and (now_s - known.read_s < max_age_s or now_s - known.tried_s < _RETRY_S):
            return
        try:
            await self._single_flight.run(url, lambda: self._read(url))
        except BrokerError as error:
            known = self._sets.get(url)
            if known is None or now_s - known.read_s > _USABLE_S:
                raise Unavailable(
                    "the identity provider's keys cannot be read",
                    retry_after_s=_RETRY_AFTER_S,
                    log_text=error.log_text or error.message,
                ) from error
            known.tried_s = now_s

    async def _read(self, url: str) -> None:
        document = await self._fetch(url)
        now_s = self._clock.monotonic_s()
        self._sets.put(url, _KeySet(_parse_keys(document), now_s, now_s))


class IdentityLogin:
    """From an identity token to a user."""

    def __init__(self, providers: IdentityProviders, users: Users, keys: IdentityKeys, clock: Clock) -> None:
        self._providers = providers
        self._users = users
        self._keys = keys
        self._clock = clock

    async def identify(self, account: str, token: str) -> Match:
        """The user of a token and the state of its credentials.

        Raises:
            BadCredentials: the token is not accepted, or nobody or more than one user is meant.
            Unavailable: the provider's keys or the database cannot be read.
        """
        algorithm, kid = identity_tokens.read_jose_header(token)
        provider = await self._providers.find(account, identity_tokens.read_issuer(token))
        if provider is None:
            raise identity_tokens.refused()
        key = await self._keys.find(provider.jwks_url, algorithm, kid)
        if key is None:
            raise identity_tokens.refused()
        identity = identity_tokens.verify(token, key, algorithm, provider, self._clock.now_ms())
        match = await self._providers.match(account, identity)
        if match is None:
            raise identity_tokens.refused()
        return await self._with_role(account, identity, match)

    async def _with_role(self, account: str, identity: Identity, match: Match) -> Match:
        role = identity.role
        if role is None or role is match.user.role:
            return match

        def change(before: User) -> User:
            return before.model_copy(update={"role": role})

        with suppress(Conflict):  # the last admin stays one
            by = Actor.provider(identity.issuer)
            await membership.change_user(self._users, self._clock, account, match.user.id, change, by=by)
        changed = await self._providers.match(account, identity)
        if changed is None:
            raise identity_tokens.refused()
        return changed


def _parse_keys(document: bytes) -> list[dict[str, Any]]:
    try:
        keys = orjson.loads(document)["keys"]
        return [key for key in keys[:_MAX_KEYS] if isinstance(key, dict)]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        raise Unavailable("the identity provider's keys cannot be read", log_text="no key set") from None
