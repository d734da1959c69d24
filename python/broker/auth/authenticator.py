"""Authentication: the `Auth` port on PostgreSQL.

A token is verified once in a process, and an API token that is sent as it is looked up once; afterwards what
it stands for is found by its SHA-256, and what its user may is in memory (`broker.auth.standings`). A
background task keeps that up to date: it is woken by a notification of the database and, since notifications
can be lost, looks every `poll_s` anyway.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from broker.auth import tokens
from broker.auth.bearers import Bearer
from broker.auth.holders import Holders
from broker.auth.identity import FetchKeys, IdentityKeys, IdentityLogin
from broker.auth.keys import Keyring, KeyringConfig
from broker.auth.passwords import PasswordConfig, Passwords
from broker.auth.service import AccessToken, RevocationCallback
from broker.auth.standings import Standings
from broker.auth.throttle import WINDOW_S, LoginThrottle, ThrottleConfig
from broker.auth.tokens import Claims
from broker.clock import Clock
from broker.domain.api_tokens import hash_secret, is_secret
from broker.domain.users import Principal, User, normalise_username
from broker.errors import BadCredentials, BrokerError, Unauthenticated, Unavailable
from broker.ids import IdSource
from broker.settings import Settings
from broker.storage.api_tokens import ApiTokens, Holder
from broker.storage.database import Database
from broker.storage.identity_providers import IdentityProviders
from broker.storage.keys import Keys
from broker.storage.login_failures import LoginFailures
from broker.storage.revocations import CHANNEL, Revocations
from broker.storage.users import Credentials, Standing, Users
from broker.tasks import keep_running

_LOG = logging.getLogger(__name__)
_MAX_VERIFIED = 10_000  # tokens; a viewer's application shares one, so this is many more users than it seems
_CLEAN_S = 60.0
_PAUSE_S = 0.05  # between two looks at the database, however many notifications come


@dataclass(frozen=True, slots=True)
class AuthConfig:
    """Everything that authentication can be told.

    Attributes:
        issuer: the one value of `iss`.
        token_lifetime_s: of the tokens issued here; one that would live longer is refused.
        poll_s: how late, at most, a change is seen whose notification was lost.
        listens: whether notifications are heard at all; without them `poll_s` alone counts.
    """

    issuer: str
    token_lifetime_s: int
    throttle: ThrottleConfig = ThrottleConfig()
    passwords: PasswordConfig = PasswordConfig()
    poll_s: float = 2.0
    listens: bool = True

    @classmethod
    def of(cls, settings: Settings) -> "AuthConfig":
        """The configuration that the settings ask for."""
        return cls(
            issuer=f"https://{settings.public_host}",
            token_lifetime_s=settings.token_lifetime_s,
            throttle=ThrottleConfig(settings.login_tries_per_user, settings.login_tries_per_address),
        )


class Authenticator:
    """See `broker.auth.service.Auth`. `start` before use; `close` ends its task and its threads."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        ids: IdSource,
        config: AuthConfig,
        fetch_keys: FetchKeys | None = None,
    ) -> None:
        """Args: fetch_keys: reads the keys of identity providers; without it their tokens are refused."""
        self._database = database
        self._clock = clock
        self._ids = ids
        self._config = config
        self._users = Users(database)
        self._api_tokens = ApiTokens(database)
        self._identity_keys = IdentityKeys(fetch_keys or _no_keys, clock)
        providers = IdentityProviders(database)
        self._identities = IdentityLogin(providers, self._users, self._identity_keys, clock)
        self._revocations = Revocations(database)
        self._passwords = Passwords(config.passwords)
        self._standings = Standings(self._users, self._revocations, clock)
        self._keys = Keyring(Keys(database), clock, KeyringConfig(config.token_lifetime_s))
        self._keys.on_revocation(self._forget_tokens)
        failures = LoginFailures(database, window_s=WINDOW_S)
        self._throttle = LoginThrottle(failures, clock, config.throttle)
        self._holders = Holders(self._api_tokens, clock, config.throttle.per_address)
        self._verified: OrderedDict[bytes, Bearer] = OrderedDict()
        # Made of a token of `_verified` and the standing of its user; good for that standing only.
        self._principals: dict[bytes, tuple[Standing, Principal]] = {}
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Make the first signing key if there is none, and begin to follow changes. Raises Unavailable."""
        await self._keys.signing()
        await self._standings.catch_up()
        self._tasks = [keep_running("auth.follow", self._follow)]
        if self._config.listens:
            self._tasks.append(keep_running("auth.listen", self._listen))

    async def close(self) -> None:
        """End the tasks and the threads. Idempotent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self._identity_keys.close()
        await self._holders.close()
        await self._standings.close()
        await self._keys.close()
        self._passwords.close()

    async def _listen(self) -> None:
        await self._database.listen(CHANNEL, lambda _payload: self._news.set())

    async def authenticate(self, account: str, token: str, address: str = "") -> Principal:
        """See `Auth.authenticate`."""
        digest = hash_secret(token)
        known = self._principals.get(digest)
        if known is not None and known[1].account == account and self._is_current(*known):
            self._verified.move_to_end(digest)
            return known[1]
        bearer = await self._bearer(digest, account, token, address)
        if bearer.account != account:
            raise Unauthenticated("the access token belongs to another account")
        subject = (account, bearer.subject)
        standing = await self._standings.find(
            subject, bearer.valid_from_ms, bearer.ends_ms, bearer.api_token_id
        )
        if standing is None:
            raise Unauthenticated("the access token has been revoked")
        principal = Principal(
            account=account,
            role=standing.role,
            subject=bearer.subject,
            username=standing.username,
            project_ids=standing.project_ids,
            token_id=bearer.token_id,
            issued_ms=bearer.issued_ms,
            expires_ms=bearer.expires_ms,
            valid_from_ms=bearer.valid_from_ms,
            api_token_id=bearer.api_token_id,
            key_id=bearer.key_id,
        )
        if digest in self._verified:  # which may have made room for others meanwhile
            self._principals[digest] = standing, principal
        return principal

    def _is_current(self, standing: Standing, principal: Principal) -> bool:
        """Whether what a token was found to be worth is so still: neither it nor the standing has ended."""
        if principal.subject is None:
            return False
        subject = (principal.account, principal.subject)
        is_live = self._clock.now_ms() < principal.ends_ms and self._standings.holds(subject, standing)
        return is_live and (principal.api_token_id is None or not self.is_revoked(principal))

    def is_revoked(self, principal: Principal) -> bool:
        """See `Auth.is_revoked`."""
        if principal.subject is None or principal.valid_from_ms is None:
            return False
        if self._keys.is_revoked(principal.key_id):
            return True
        subject = (principal.account, principal.subject)
        return self._standings.is_revoked(subject, principal.valid_from_ms, principal.api_token_id)

    def on_revocation(self, callback: RevocationCallback) -> None:
        """See `Auth.on_revocation`."""
        self._standings.on_revocation(callback)

    def on_key_revocation(self, callback: Callable[[str], None]) -> None:
        """See `Auth.on_key_revocation`."""
        self._keys.on_revocation(callback)

    def on_change(self, callback: Callable[[str, str], None]) -> None:
        """See `Auth.on_change`."""
        self._standings.on_change(callback)

    async def log_in(self, account: str, username: str, password: str, address: str) -> AccessToken:
        """See `Auth.log_in`."""
        username = normalise_username(username)
        secret = await self._keys.secret("login failures")
        attempt = self._throttle.build_try(account, username, address, secret)
        await self._throttle.check(attempt)
        credentials = await self._users.find_credentials(account, username)
        stored = None if credentials is None else credentials.password_hash

        async def admit() -> None:
            await self._throttle.check(attempt)

        if not await self._passwords.verify(stored, password, admit) or credentials is None:
            await self._throttle.record_failure(attempt)
            raise BadCredentials("the user name or the password is wrong")
        await self._throttle.check(attempt)
        await self._rehash_if_outdated(account, credentials, password)
        return await self.issue(account, credentials.user, credentials.valid_from_ms)

    async def exchange(self, account: str, api_token: str, address: str) -> AccessToken:
        """See `Auth.exchange`."""
        secret = await self._keys.secret("login failures")
        attempt = self._throttle.build_try(account, api_token, address, secret, "api token")
        await self._throttle.check(attempt)
        now_ms = self._clock.now_ms()
        holder = await self._api_tokens.find_holder(account, hash_secret(api_token), now_ms)
        if holder is None:
            await self._throttle.record_failure(attempt)
            raise BadCredentials("the API token is unknown, revoked or expired")
        await self._throttle.check(attempt)
        return await self._issue(account, holder.user, holder.valid_from_ms, holder)

    async def log_in_by_identity(self, account: str, token: str, address: str) -> AccessToken:
        """See `Auth.log_in_by_identity`."""
        secret = await self._keys.secret("login failures")
        attempt = self._throttle.build_try(account, token, address, secret, "identity token")
        await self._throttle.check(attempt)
        try:
            match = await self._identities.identify(account, token)
        except BadCredentials:
            await self._throttle.record_failure(attempt)
            raise
        await self._throttle.check(attempt)
        return await self._issue(account, match.user, match.valid_from_ms)

    async def issue(self, account: str, user: User, valid_from_ms: int) -> AccessToken:
        """See `Auth.issue`."""
        return await self._issue(account, user, valid_from_ms)

    async def _issue(
        self,
        account: str,
        user: User,
        valid_from_ms: int,
        holder: Holder | None = None,
    ) -> AccessToken:
        key = await self._keys.signing()
        issued_s = self._clock.now_ms() // 1000
        lifetime_s = self._config.token_lifetime_s
        if holder is not None and holder.expires_ms is not None:
            # Ends with the API token; in its last second there is no shorter life than one second.
            lifetime_s = max(1, min(lifetime_s, holder.expires_ms // 1000 - issued_s))
        claims = Claims(
            account=account,
            subject=user.id,
            username=user.username,
            role=user.role,
            token_id=self._ids.uuid7(),
            issued_s=issued_s,
            expires_s=issued_s + lifetime_s,
            valid_from_ms=valid_from_ms,
            api_token_id=None if holder is None else holder.token_id,
        )
        token = tokens.sign(claims, self._config.issuer, key.kid, key.private)
        return AccessToken(token, lifetime_s)

    async def hash_password(self, password: str, salt: bytes | None = None) -> str:
        """See `Auth.hash_password`."""
        return await self._passwords.hash(password, salt)

    async def jwks(self) -> dict[str, Any]:
        """See `Auth.jwks`."""
        return await self._keys.jwks()

    async def rotate_keys(self) -> None:
        """Announce a new signing key; nobody is logged out."""
        await self._keys.rotate()

    async def _bearer(self, digest: bytes, account: str, token: str, address: str) -> Bearer:
        """What a token that is good by itself stands for, from memory where it was seen before."""
        bearer = self._verified.get(digest)
        if bearer is None:
            if is_secret(token):
                bearer = await self._look_up(digest, account, address)
            else:
                bearer = await self._verify(token)
            self._verified[digest] = bearer
            if len(self._verified) > _MAX_VERIFIED:
                forgotten, _ = self._verified.popitem(last=False)
                self._principals.pop(forgotten, None)
        elif self._clock.now_ms() >= bearer.ends_ms:
            del self._verified[digest]
            self._principals.pop(digest, None)
            raise tokens.expired()
        else:
            self._verified.move_to_end(digest)
        return bearer

    async def _look_up(self, digest: bytes, account: str, address: str) -> Bearer:
        holder = await self._holders.find(account, digest, address)
        if holder is None:
            raise Unauthenticated("the API token is unknown, revoked or expired")
        return Bearer.of_holder(account, holder)

    async def _verify(self, token: str) -> Bearer:
        kid = tokens.read_kid(token)
        key = await self._keys.find(kid)
        if key is None:
            raise Unauthenticated("the access token is signed with an unknown key")
        claims = tokens.verify(token, key, self._config.issuer)
        tokens.check_times(claims, self._clock.now_ms(), self._config.token_lifetime_s)
        return Bearer.of_claims(claims, kid)

    def _forget_tokens(self, _kid: str) -> None:
        """Verify every token anew; a revoked key is too rare for a list of what it has signed."""
        self._verified.clear()
        self._principals.clear()

    async def _rehash_if_outdated(self, account: str, credentials: Credentials, password: str) -> None:
        if not self._passwords.is_outdated(credentials.password_hash):
            return
        # The old hash is as good as before; a log-in does not fail for it.
        with suppress(Unavailable):
            renewed = await self._passwords.hash(password)
            await self._users.replace_hash(account, credentials.user.id, credentials.password_hash, renewed)

    async def _follow(self) -> None:
        """Catch up at every notification and every `poll_s`; tidy up now and then; never end by itself."""
        cleaned_s = self._clock.monotonic_s()
        while True:
            with suppress(TimeoutError):
                # not wait_for, which can lose a cancellation in Python 3.11
                async with asyncio.timeout(self._config.poll_s):
                    await self._news.wait()
            self._news.clear()
            try:
                await self._standings.catch_up()
                await self._keys.refresh()
                if self._clock.monotonic_s() - cleaned_s >= _CLEAN_S:
                    cleaned_s = self._clock.monotonic_s()
                    await self._clean()
            except BrokerError as error:
                _LOG.warning("auth.behind", extra={"reason": error.log_text or error.message})
            except Exception:
                _LOG.exception("auth.follow_failed")
            await asyncio.sleep(_PAUSE_S)

    async def _clean(self) -> None:
        await self._throttle.purge()
        await self._revocations.purge(self._config.token_lifetime_s + 3600)
        await self._keys.rotate_if_old()
        await self._keys.purge()


async def _no_keys(_url: str) -> bytes:
    raise Unavailable("keys of identity providers are not read here")
