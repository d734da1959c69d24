"""Authentication: tokens in, principals out.

A token is verified once in a process, and an API token that is sent as it is looked up once; afterwards what
it stands for is found by its SHA-256, and what its user may is in memory (`broker.auth.standings`). The
SHA-256 of the tokens that came last are remembered, with the tokens. A background task keeps what users may
up to date: it is woken by a notification of the database and, since notifications can be lost, looks every
`poll_s` anyway.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from broker.auth import tokens
from broker.auth.bearers import Bearer
from broker.auth.holders import Holders
from broker.auth.identity import FetchKeys, IdentityKeys, IdentityLogin
from broker.auth.keys import Keyring, KeyringConfig
from broker.auth.passwords import PasswordConfig, Passwords
from broker.auth.standings import RevocationCallback, Standings
from broker.auth.throttle import WINDOW_S, LoginThrottle, ThrottleConfig
from broker.auth.tokens import AccessToken, Claims
from broker.clock import Clock
from broker.concurrency.caches import LruCache
from broker.concurrency.shares import NOBODY, Asker
from broker.concurrency.tasks import cancel_and_wait, is_set_within, keep_running
from broker.domain.api_tokens import hash_secret, is_secret
from broker.domain.callers import caller_of
from broker.domain.users import Principal, User, normalise_username
from broker.errors import BadCredentials, BrokerError, Unauthenticated, Unavailable
from broker.ids import IdSource
from broker.metrics import catalogue
from broker.metrics.counts import Sample
from broker.settings import Settings
from broker.storage.api_tokens import ApiTokens, Holder
from broker.storage.database import Database
from broker.storage.identity_providers import IdentityProviders
from broker.storage.keys import Keys
from broker.storage.login_failures import LoginFailures
from broker.storage.revocations import CHANNEL, Revocations
from broker.storage.users import Credentials, Standing, Users

_LOG = logging.getLogger(__name__)
_HASHES = 1_000  # remembered at a time
_REMEMBERED_CHARACTERS = 2_000  # a stranger does not fill the memory with longer tokens; ours have 500
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
    poll_s: float = 2.9
    listens: bool = True

    @classmethod
    def of(cls, settings: Settings) -> "AuthConfig":
        """The configuration that the settings ask for."""
        return cls(
            issuer=f"https://{settings.public_host}",
            token_lifetime_s=settings.token_lifetime_s,
            throttle=ThrottleConfig(settings.login_tries_per_user, settings.login_tries_per_address),
        )


@dataclass(slots=True, eq=False)
class _Verified:
    """A token that is good by itself.

    Attributes:
        worth: what it was found to be worth, which is good while its user has that standing.
    """

    bearer: Bearer
    worth: tuple[Standing, Principal] | None = None


class Authenticator:
    """Verifying a known token costs no query. `start` before use; `close` ends its tasks and its threads."""

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
        self._verified: LruCache[bytes, _Verified] = LruCache(_MAX_VERIFIED)
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Make the first signing key if there is none, and begin to follow changes. Raises Unavailable."""
        await self._keys.signing()
        await self._standings.catch_up()
        self._tasks = [keep_running("auth.follow", self._follow)]
        if self._config.listens:
            listen = partial(self._database.listen, CHANNEL, lambda _payload: self._news.set())
            self._tasks.append(keep_running("auth.listen", listen))

    async def close(self) -> None:
        """End the tasks and the threads. Idempotent."""
        await cancel_and_wait(*self._tasks)
        self._tasks = []
        await self._identity_keys.close()
        await self._holders.close()
        await self._standings.close()
        await self._keys.close()
        self._passwords.close()

    async def authenticate(self, account: str, token: str, address: str = "") -> Principal:
        """The principal of an access token or an API token, with the user's present role and projects.

        An API token counts as an access token that it was exchanged for, and ends at its own end only.
        A user's changes are seen within 5 seconds, here and in every other process. While the database is
        away, tokens that this process has seen before go on working.

        Args:
            address: where the token came from. API tokens that are not found are counted for it; an empty
                one is that of no peer and has no limit.

        Raises:
            Unauthenticated: malformed, expired, revoked, of another account or signed by an unknown key.
            SlowDown: an API token that is new to this process, after too many from its address that are
                unknown; `retry_after_s` is when the next one is looked for.
            Unavailable: the token is new to this process and the database is unavailable, or too many wait.
        """
        digest = _known_hash(token) if len(token) <= _REMEMBERED_CHARACTERS else hash_secret(token)
        known = self._verified.get(digest)
        if known is not None and known.worth is not None:
            standing, principal = known.worth
            if principal.account == account and self._is_current(standing, principal):
                return principal
        verified = await self._verify_once(digest, account, token, address)
        found = await self._find_standing(account, verified.bearer)
        if found is None and verified.bearer.is_api_token:
            # An API token names no state of the credentials: a restored backup has the token, and its user in
            # another state. So its holder is looked up again, within the limits of unknown tokens.
            if self._verified.peek(digest) is verified:
                self._verified.pop(digest)
            verified = await self._verify_once(digest, account, token, address)
            found = await self._find_standing(account, verified.bearer)
        if found is None:
            raise Unauthenticated("the access token has been revoked")
        bearer = verified.bearer
        principal = Principal(
            account=account,
            role=found.role,
            subject=bearer.subject,
            username=found.username,
            project_ids=found.project_ids,
            token_id=bearer.token_id,
            issued_ms=bearer.issued_ms,
            expires_ms=bearer.expires_ms,
            valid_from_ms=bearer.valid_from_ms,
            api_token_id=bearer.api_token_id,
            key_id=bearer.key_id,
        )
        verified.worth = found, principal
        return principal

    async def _find_standing(self, account: str, bearer: Bearer) -> Standing | None:
        """What the token is worth; None where it is worth nothing. Raises Unauthenticated, Unavailable."""
        if bearer.account != account:
            raise Unauthenticated("the access token belongs to another account")
        subject = (account, bearer.subject)
        return await self._standings.find(subject, bearer.valid_from_ms, bearer.ends_ms, bearer.api_token_id)

    def _is_current(self, standing: Standing, principal: Principal) -> bool:
        """Whether what a token was found to be worth is so still: neither it nor the standing has ended."""
        if principal.subject is None:
            return False
        subject = (principal.account, principal.subject)
        is_live = self._clock.now_ms() < principal.ends_ms and self._standings.holds(subject, standing)
        return is_live and (principal.api_token_id is None or not self.is_revoked(principal))

    def is_revoked(self, principal: Principal) -> bool:
        """Whether the principal's token has been revoked since it was verified; a look-up in memory.

        A principal without a token is never revoked.
        """
        if principal.subject is None or principal.valid_from_ms is None:
            return False
        if self._keys.is_revoked(principal.key_id):
            return True
        subject = (principal.account, principal.subject)
        return self._standings.is_revoked(subject, principal.valid_from_ms, principal.api_token_id)

    def on_revocation(self, callback: RevocationCallback) -> None:
        """Call `callback(account, subject, valid_from_ms)` once for every revocation from now on.

        It is called on the event loop and must not block. It is called before the first token that the
        user got afterwards is accepted here, so that ending the user's sessions ends only the earlier ones.
        """
        self._standings.on_revocation(callback)

    def on_key_revocation(self, callback: Callable[[str], None]) -> None:
        """Call `callback(key_id)` once for every signing key that is revoked from now on.

        It is called on the event loop and must not block; tokens of the key are refused already.
        """
        self._keys.on_revocation(callback)

    def on_change(self, callback: Callable[[str, str], None]) -> None:
        """Call `callback(account, subject)` when a user whose token is known here got other rights.

        Its tokens stay valid; what it may read has to be asked again.
        """
        self._standings.on_change(callback)

    async def log_in(self, account: str, username: str, password: str, address: str) -> AccessToken:
        """Check a user name and a password, and issue a token.

        An unknown user takes as long as a wrong password. Failed tries are counted for the name and for the
        address over all processes; over the limit the right password is refused too.

        Raises:
            BadCredentials: the user is unknown or the password wrong.
            SlowDown: too many failed tries; `retry_after_s` is when the next one is taken.
            Unavailable: the database is unavailable, or too many log-ins wait for a processor.
        """
        username = normalise_username(username)
        secret = await self._keys.secret("login failures")
        attempt = self._throttle.build_try(account, username, address, secret)
        await self._throttle.check(attempt)
        credentials = await self._users.find_credentials(account, username)
        stored = None if credentials is None else credentials.password_hash

        async def admit() -> None:
            await self._throttle.check(attempt)

        asker = Asker(account, caller_of(address))
        if not await self._passwords.verify(stored, password, admit, asker=asker) or credentials is None:
            await self._throttle.record_failure(attempt)
            raise BadCredentials("the user name or the password is wrong")
        await self._throttle.check(attempt)
        await self._rehash_if_outdated(asker, credentials, password)
        return await self.issue(account, credentials.user, credentials.valid_from_ms)

    async def exchange(self, account: str, api_token: str, address: str) -> AccessToken:
        """Issue an access token for an API token; it ends with the API token at the latest.

        Failed tries are counted for the text and for the address, as those of `log_in` are.

        Raises:
            BadCredentials: the API token is unknown, revoked or expired.
            SlowDown: too many failed tries; `retry_after_s` is when the next one is taken.
            Unavailable: the database is unavailable.
        """
        secret = await self._keys.secret("login failures")
        attempt = self._throttle.build_try(account, api_token, address, secret, "api token")
        await self._throttle.check(attempt)
        now_ms = self._clock.now_ms()
        holder = await self._api_tokens.find_holder(account, hash_secret(api_token), now_ms)
        if holder is None:
            await self._throttle.record_failure(attempt)
            raise BadCredentials("the API token is unknown, revoked or expired")
        await self._throttle.check(attempt)
        return await self.issue(account, holder.user, holder.valid_from_ms, holder)

    async def log_in_by_identity(self, account: str, token: str, address: str) -> AccessToken:
        """Issue an access token for the token of one of the account's identity providers.

        Failed tries are counted for the text and for the address, as those of `log_in` are.

        Raises:
            BadCredentials: the token is not accepted, or no one user is meant by it.
            SlowDown: too many failed tries; `retry_after_s` is when the next one is taken.
            Unavailable: the provider's keys or the database cannot be read.
        """
        secret = await self._keys.secret("login failures")
        attempt = self._throttle.build_try(account, token, address, secret, "identity token")
        await self._throttle.check(attempt)
        try:
            match = await self._identities.identify(account, token)
        except BadCredentials:
            await self._throttle.record_failure(attempt)
            raise
        await self._throttle.check(attempt)
        return await self.issue(account, match.user, match.valid_from_ms)

    async def issue(
        self, account: str, user: User, valid_from_ms: int, holder: Holder | None = None
    ) -> AccessToken:
        """A signed access token that lives for the configured lifetime.

        Args:
            valid_from_ms: of the user's credentials as they were when they were checked. A password that
                changed meanwhile makes this token invalid from its birth.
            holder: of the API token that it is exchanged for.
        """
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

    async def hash_password(self, password: str, salt: bytes | None = None, *, asker: Asker = NOBODY) -> str:
        """What is stored of a new password; with a `salt` of 16 bytes the same for the same password.

        Raises Unavailable when too many wait for a processor.
        """
        return await self._passwords.hash(password, salt, asker=asker)

    def figures(self) -> Iterator[Sample]:
        """How many passwords wait to be hashed."""
        yield Sample(catalogue.QUEUE.name, ("passwords",), self._passwords.waiting)

    async def jwks(self) -> dict[str, Any]:
        """The public keys of every token that can still be valid (RFC 7517, RFC 8037)."""
        return await self._keys.jwks()

    async def rotate_keys(self) -> None:
        """Announce a new signing key; nobody is logged out."""
        await self._keys.rotate()

    async def _verify_once(self, digest: bytes, account: str, token: str, address: str) -> "_Verified":
        """What a token that is good by itself stands for, from memory where it was seen before."""
        verified = self._verified.get(digest)
        if verified is None:
            if is_secret(token):
                bearer = await self._look_up(digest, account, address)
            else:
                bearer = await self._verify(token)
            verified = _Verified(bearer)
            self._verified.put(digest, verified)
        elif self._clock.now_ms() >= verified.bearer.ends_ms:
            self._verified.pop(digest)
            raise tokens.expired()
        return verified

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
        """Verify every token again; a revoked key is too rare for a list of what it has signed."""
        self._verified.clear()

    async def _rehash_if_outdated(self, asker: Asker, credentials: Credentials, password: str) -> None:
        if not self._passwords.is_outdated(credentials.password_hash):
            return
        # The old hash is as good as before; a log-in does not fail for it.
        with suppress(Unavailable):
            renewed = await self._passwords.hash(password, asker=asker)
            user_id, before = credentials.user.id, credentials.password_hash
            await self._users.replace_hash(asker.account, user_id, before, renewed)

    async def _follow(self) -> None:
        """Catch up at every notification and every `poll_s`; tidy up now and then; never end by itself."""
        cleaned_s = self._clock.monotonic_s()
        while True:
            await is_set_within(self._news, self._config.poll_s)
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


_known_hash = lru_cache(_HASHES)(hash_secret)
"""Between other work, hashing takes four times as long as finding what the same token had before."""


async def _no_keys(_url: str) -> bytes:
    raise Unavailable("identity providers cannot be reached from this process")
