"""Sessions: tokens become principals, and principals become numbers that native code can hold.

Native code knows a token by three numbers: the *principal* that comes with each call, the *reader* class by
which it remembers who may follow a private log, and the time of expiry. What they mean is kept here.

Two callers are of one reader class when they may read the same things: equal role and equal projects, except
that projects make no difference to an admin and to a client. There are as many classes as the accounts have
distinct sets of projects, however many viewers come.
"""

import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from broker.auth.authenticator import Authenticator
from broker.clock import Clock
from broker.concurrency.caches import LruCache
from broker.domain.permissions import READERS
from broker.domain.users import Principal, Role
from broker.errors import BrokerError, Unauthenticated, Unavailable

_log = logging.getLogger(__name__)

MAX_SESSIONS = (
    262_144  # about 400 bytes each; more than one gateway is given viewers with tokens of their own
)
_ReaderClass = tuple[str, Role | None, frozenset[str]]


class TokenCache(Protocol):
    """The part of the native server that remembers what tokens stand for."""

    def grant(
        self, account: str, token: str, principal: int, reader: int, subject: str, expires_ms: int
    ) -> None:
        """Remember a token."""

    def replace(
        self, account: str, token: str, principal: int, reader: int, subject: str, expires_ms: int
    ) -> int:
        """Remember a token in place of what was granted to `subject`, for its connections too."""

    def revoke(self, account: str, subject: str) -> int:
        """Forget what was granted to `subject` and make its connections anonymous."""


@dataclass(frozen=True, slots=True)
class Session:
    """One token that is in use.

    Attributes:
        number: what native code calls the principal; never used twice.
        reader: the number of its reader class.
    """

    number: int
    reader: int
    principal: Principal
    token: str


class Sessions:
    """All sessions of one gateway, the least recently used forgotten first.

    A connection whose session was forgotten is treated as one whose token has expired: as anonymous.
    """

    def __init__(
        self, cache: TokenCache, auth: Authenticator, clock: Clock, *, limit: int = MAX_SESSIONS
    ) -> None:
        self._cache = cache
        self._auth = auth
        self._clock = clock
        self._last_number = 0
        # Native code must forget one that leaves too, or its number would come back with the next handshake.
        self._sessions: LruCache[int, Session] = LruCache(limit, on_eviction=lambda _, old: self._revoke(old))
        self._by_token: dict[tuple[str, str], Session] = {}
        self._by_subject: dict[tuple[str, str | None], set[int]] = {}
        self._in_question: set[int] = set()
        self._reader_numbers: dict[_ReaderClass, int] = {}
        self._readers: dict[int, Principal] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    async def open(self, account: str, token: str, address: str = "") -> Session:
        """The session of `token`, granted to native code; for `address` see `Authenticator.authenticate`.

        Raises:
            Unauthenticated: the token is bad, expired, revoked or of another account.
            SlowDown: too many API tokens from this address were unknown.
            Unavailable: it cannot be checked now.
        """
        principal = await self._auth.authenticate(account, token, address)
        if self._auth.is_revoked(principal):
            # Since it was verified. From here until it can be found to be ended, nothing is awaited.
            raise Unauthenticated("the access token has been revoked")
        known = self._by_token.get((account, token))
        if known is None:
            known = self._add(account, token, principal)
            self._grant(known)
            return known
        self._sessions.get(known.number)  # used now
        if known.principal == principal:
            # Native code may have dropped it from a bounded cache of its own.
            self._grant(known)
        return self._replace(known, principal)

    def find(self, account: str, number: int) -> Session | None:
        """The session, while its token is good; None for an anonymous caller.

        One whose API token is being looked up again (see `revoke`) is none for that moment and is kept.
        """
        session = self._sessions.get(number)
        if session is None or session.principal.account != account or number in self._in_question:
            return None
        if session.principal.ends_ms <= self._clock.now_ms():
            self._drop(session)
            return None
        if self._auth.is_revoked(session.principal):
            self._revoke(session)
            return None
        return session

    def reader(self, number: int) -> Principal | None:
        """A caller with the reading rights of the class `number`, or None for an unknown class."""
        return self._readers.get(number)

    def revoke(self, account: str, subject: str, valid_from_ms: int) -> int:
        """End the sessions of `subject` whose tokens are for an earlier state than `valid_from_ms`.

        API tokens are for no state: a changed password deletes them, and a restored backup has them with
        another state of the same user. So the sessions that they opened are left in question, until
        `look_up_again` has ended them or shown that they are good.

        Returns:
            How many sessions ended. Later tokens of the same user stay good.
        """
        ended = 0
        for session in self._of(account, subject):
            issued_for_ms = session.principal.valid_from_ms
            if issued_for_ms is not None and issued_for_ms >= valid_from_ms:
                continue
            if session.principal.is_api_token:
                self._in_question.add(session.number)
                continue
            self._revoke(session)
            ended += 1
        return ended

    def are_in_question(self, account: str, subject: str) -> bool:
        """Whether `look_up_again` has anything to do for `subject`."""
        numbers = self._by_subject.get((account, subject), set())
        return not self._in_question.isdisjoint(numbers)

    async def look_up_again(self, account: str, subject: str) -> None:
        """Settle which sessions of `subject` in question have API tokens that are good.

        Where that cannot be found out now, they end, and their clients sign in again.
        """
        for session in self._of(account, subject):
            if session.number not in self._in_question:
                continue
            principal = None
            try:
                with suppress(BrokerError):
                    principal = await self._auth.authenticate(account, session.token)
            finally:
                if principal is None:
                    self._revoke_if_held(session)
            if principal is not None and not self._auth.is_revoked(principal):
                self._replace(session, principal)
            # Otherwise the next revocation has come meanwhile, and with it another look.

    def revoke_key(self, key_id: str) -> int:
        """End the sessions of all tokens that this key has signed; returns how many."""
        signed = [each for each in self._sessions.values() if each.principal.key_id == key_id]
        for session in signed:
            self._revoke(session)
        return len(signed)

    async def refresh(self, account: str, subject: str) -> None:
        """Give the sessions of `subject` its present rights; its tokens stay good.

        Its connections have them at once for their calls. Where rights are lost, what a connection follows
        and may read no longer ends; rights that grow count for subscriptions after the next log-in.
        """
        for session in self._of(account, subject):
            if session.number in self._in_question:
                continue
            if self._auth.is_revoked(session.principal):
                self._revoke_if_held(session)
                continue
            try:
                principal = await self._auth.authenticate(account, session.token)
            except Unauthenticated:
                self._revoke_if_held(session)
            except Unavailable:
                continue  # asked again with the next handshake or at the latest when the token ends
            else:
                self._replace(session, principal)

    def sweep(self) -> int:
        """Forget sessions whose tokens have expired; returns how many. Native code ends them by itself."""
        now_ms = self._clock.now_ms()
        expired = [s for s in self._sessions.values() if s.principal.ends_ms <= now_ms]
        for session in expired:
            self._drop(session)
        return len(expired)

    def _of(self, account: str, subject: str) -> list[Session]:
        numbers = self._by_subject.get((account, subject), ())
        return [session for number in numbers if (session := self._sessions.peek(number)) is not None]

    def _replace(self, session: Session, principal: Principal) -> Session:
        """The session with the present rights of its token, while it is held."""
        if self._sessions.peek(session.number) is not session or principal == session.principal:
            return session
        self._in_question.discard(session.number)
        before = session.principal
        session = replace(session, principal=principal, reader=self._reader_of(principal))
        self._sessions.replace(session.number, session)
        self._by_token[principal.account, session.token] = session
        if before.role is not principal.role or before.project_ids - principal.project_ids:
            self._cache.replace(*_grant_of(session))
        else:
            self._grant(session)
        return session

    def _revoke_if_held(self, session: Session) -> None:
        if self._sessions.peek(session.number) is session:
            self._revoke(session)

    def _grant(self, session: Session) -> None:
        self._cache.grant(*_grant_of(session))

    def _add(self, account: str, token: str, principal: Principal) -> Session:
        self._last_number += 1
        session = Session(self._last_number, self._reader_of(principal), principal, token)
        self._by_token[account, token] = session
        self._by_subject.setdefault((account, principal.subject), set()).add(session.number)
        self._sessions.put(session.number, session)
        return session

    def _reader_of(self, principal: Principal) -> int:
        projects = principal.project_ids
        if principal.role is Role.ADMIN or principal.role not in READERS:
            projects = frozenset()
        key = (principal.account, principal.role, projects)
        number = self._reader_numbers.get(key)
        if number is None:
            number = len(self._reader_numbers) + 1
            self._reader_numbers[key] = number
            self._readers[number] = Principal(principal.account, principal.role, project_ids=projects)
        return number

    def _revoke(self, session: Session) -> None:
        connections = self._cache.revoke(session.principal.account, _native_subject(session))
        self._drop(session)
        _log.info(
            "session_revoked",
            extra={"account": session.principal.account, "connections": connections},
        )

    def _drop(self, session: Session) -> None:
        self._sessions.pop(session.number)
        self._in_question.discard(session.number)
        key = (session.principal.account, session.token)
        if self._by_token.get(key) is session:
            del self._by_token[key]
        subject = (session.principal.account, session.principal.subject)
        numbers = self._by_subject[subject]
        numbers.discard(session.number)
        if not numbers:
            del self._by_subject[subject]


class SignIns:
    """Connections that have signed in by a call, until native code's calls show it.

    A `login` and what follows it may be in one packet: the calls after it were taken up by native code
    before the login had its effect and still carry the earlier principal. They belong to the new one.
    """

    def __init__(self, *, limit: int = 4_096) -> None:
        # Whoever logs in and never calls again is forgotten in the end; the native side has the session.
        self._numbers: LruCache[int, int] = LruCache(limit)

    def add(self, conn: int, number: int) -> None:
        """From now on `conn` acts as session `number`."""
        self._numbers.put(conn, number)

    def resolve(self, conn: int, number: int) -> int:
        """The session number that a call of `conn` which carries `number` belongs to."""
        newest = self._numbers.get(conn)
        if newest is None:
            return number
        if newest == number:
            self._numbers.pop(conn)
        return newest


def _grant_of(session: Session) -> tuple[str, str, int, int, str, int]:
    principal = session.principal
    subject = _native_subject(session)
    return (principal.account, session.token, session.number, session.reader, subject, principal.ends_ms)


def _native_subject(session: Session) -> str:
    # Not the user alone: a revocation ends the tokens issued before it, and native code knows no issue time.
    return f"{session.principal.subject}#{session.number}"
