"""The state of users whose tokens this process has seen, and who is notified when it changes.

A token is worth what its user is: it is valid while the user exists and its credentials are in the state that
the token was issued for; the user's present role and projects decide what it may. `Standings` keeps that in
memory. `catch_up` reads it again for all users at once; its caller does so at every notification, and every
few seconds anyway.

Two things are kept: the standing of users with a live token, in a bounded table, and, for many more, the
newest state of credentials that was seen (`_newest`), by which a revocation is told once and in time. Who is
not found (`_gone`) is there again only when the feed says so, after a restore.

An access token that was exchanged for an API token is worth something while that one is there. Answers of the
database can cross, so an API token counts as gone only after a look that began when it was in use already, or
when the feed of revocations says so. Its absence is then final, because ids are not used twice.
"""

from collections.abc import Callable
from datetime import datetime

from broker.clock import Clock
from broker.concurrency.caches import LruCache
from broker.concurrency.single_flight import SingleFlight
from broker.storage.revocations import Revocations
from broker.storage.users import Standing, Users

MAX_STANDINGS = 2_000  # read again every few seconds, at 15 µs each on the machine where this was measured
MAX_REMEMBERED = 100_000
_NEVER = 2**53  # the state of credentials of a user that is gone: no token was issued for it

RevocationCallback = Callable[[str, str, int], None]
"""Called with (account, subject, valid_from_ms): tokens issued for an earlier state are invalid."""

SubjectKey = tuple[str, str]
"""(account, user id)"""


class Standings:
    """The standings of users with live tokens. Use from one event loop."""

    def __init__(self, users: Users, revocations: Revocations, clock: Clock) -> None:
        self._users = users
        self._revocations = revocations
        self._clock = clock
        self._standings: LruCache[SubjectKey, Standing] = LruCache(
            MAX_STANDINGS, on_eviction=lambda subject, _: self._forget(subject)
        )
        self._needed_until_ms: dict[SubjectKey, int] = {}
        self._newest: LruCache[SubjectKey, int] = LruCache(MAX_REMEMBERED)
        self._gone: LruCache[SubjectKey, bool] = LruCache(MAX_REMEMBERED)  # whether it was told
        self._gone_api_tokens: LruCache[str, bool] = LruCache(MAX_REMEMBERED)
        self._told_api_tokens: LruCache[str, bool] = LruCache(MAX_REMEMBERED)  # of those, the ones told
        self._position: datetime | None = None
        self._single_flight: SingleFlight[SubjectKey, None] = SingleFlight()
        self._revocation_callbacks: list[RevocationCallback] = []
        self._change_callbacks: list[Callable[[str, str], None]] = []

    def on_revocation(self, callback: RevocationCallback) -> None:
        """Call `callback` once for every revocation from now on."""
        self._revocation_callbacks.append(callback)

    def on_change(self, callback: Callable[[str, str], None]) -> None:
        """Call `callback` when the rights of a known user change."""
        self._change_callbacks.append(callback)

    def is_revoked(self, subject: SubjectKey, valid_from_ms: int, api_token_id: str | None = None) -> bool:
        """Whether tokens issued for this state of the credentials are known to be invalid."""
        if subject in self._gone or (self._newest.peek(subject) or 0) > valid_from_ms:
            return True
        return api_token_id in self._gone_api_tokens

    def holds(self, subject: SubjectKey, standing: Standing) -> bool:
        """Whether nothing has been learnt of the user since `find` answered `standing`."""
        return self._standings.get(subject) is standing

    async def find(
        self, subject: SubjectKey, valid_from_ms: int, until_ms: int, api_token_id: str | None = None
    ) -> Standing | None:
        """The user's standing, or None when it, its API token or this state of its credentials is gone.

        A query is made for a user that is new here, and for a token that is newer than what is known of it.

        Args:
            until_ms: when the token ends; until then the standing is kept fresh.
            api_token_id: what the token was exchanged for, if it was.

        Raises:
            Unavailable: a query is needed, and the database is unavailable.
        """
        standing = self._standings.get(subject)
        # The second time, because the first may join a query that was on its way before the token was made.
        for _ in range(2):
            if _covers(standing, valid_from_ms, api_token_id):
                break
            if self.is_revoked(subject, valid_from_ms, api_token_id):
                break
            await self._single_flight.run(subject, lambda: self._load(subject))
            standing = self._standings.get(subject)
        if standing is None or standing.valid_from_ms != valid_from_ms:
            return None
        if api_token_id is not None and api_token_id not in standing.api_token_ids:
            self._gone_api_tokens.put(api_token_id, True)
        if api_token_id in self._gone_api_tokens:
            return None
        self._needed_until_ms[subject] = max(until_ms, self._needed_until_ms.get(subject, 0))
        return standing

    async def catch_up(self) -> None:
        """Learn what has changed since the last time. Raises Unavailable; then nothing is forgotten."""
        if self._position is None:
            self._position = await self._revocations.now()
        revoked, position = await self._revocations.since(self._position)
        # Since it was told that a user is gone, there has been no session of its to end.
        ended = {revocation.subject_key for revocation in revoked if self._gone.peek(revocation.subject_key)}
        for revocation in revoked:
            subject = revocation.subject_key
            if revocation.api_token_id is not None:
                self._revoke_api_token(subject, revocation.api_token_id)
                continue
            newest = self._newest.peek(subject)
            if newest is None or newest < revocation.valid_from_ms:
                self._gone.pop(subject)
                self._revoke(subject, revocation.valid_from_ms, is_told=subject in ended)
        self._position = position
        await self._reload()

    async def close(self) -> None:
        """End queries that are under way."""
        await self._single_flight.close()

    async def _load(self, subject: SubjectKey) -> None:
        found = await self._users.standings([subject[1]])
        self._learn(subject, next((s for s in found if s.account == subject[0]), None))

    async def _reload(self) -> None:
        self._drop_unneeded()
        subjects = list(self._standings)
        if not subjects:
            return
        found = {(s.account, s.user_id): s for s in await self._users.standings(user for _, user in subjects)}
        for subject in subjects:
            self._learn(subject, found.get(subject))

    def _learn(self, subject: SubjectKey, standing: Standing | None) -> None:
        """Take over what the database says. What is known already may be newer: answers can cross."""
        if subject in self._gone:
            return
        newest = self._newest.peek(subject)
        if standing is None:
            self._gone.put(subject, newest is not None)
            self._forget(subject)
            if newest is not None:
                self._tell(subject, _NEVER)
            return
        if newest is not None and standing.valid_from_ms < newest:
            return
        if newest is not None and standing.valid_from_ms > newest:
            self._revoke(subject, standing.valid_from_ms)
        if standing.valid_from_ms != newest:
            self._newest.put(subject, standing.valid_from_ms)
        before = self._standings.peek(subject)
        self._standings.replace(subject, standing)
        if before is not None and _has_changed(before, standing):
            for callback in self._change_callbacks:
                callback(*subject)

    def _revoke(self, subject: SubjectKey, valid_from_ms: int, is_told: bool = False) -> None:
        self._newest.put(subject, valid_from_ms)
        standing = self._standings.peek(subject)
        if standing is not None and standing.valid_from_ms < valid_from_ms:
            self._forget(subject)
        if not is_told:
            self._tell(subject, valid_from_ms)

    def _tell(self, subject: SubjectKey, valid_from_ms: int) -> None:
        for callback in self._revocation_callbacks:
            callback(*subject, valid_from_ms)

    def _drop_unneeded(self) -> None:
        """Forget the users whose tokens have all ended."""
        now_ms = self._clock.now_ms()
        for subject in [s for s in self._standings if self._needed_until_ms.get(s, 0) <= now_ms]:
            self._forget(subject)

    def _forget(self, subject: SubjectKey) -> None:
        self._standings.pop(subject)
        self._needed_until_ms.pop(subject, None)

    def _revoke_api_token(self, subject: SubjectKey, api_token_id: str) -> None:
        """Take over what the feed says; of users who are in the table, the next look tells it."""
        self._gone_api_tokens.put(api_token_id, True)
        if api_token_id in self._told_api_tokens:
            return
        self._told_api_tokens.put(api_token_id, True)
        if subject not in self._standings:
            for callback in self._change_callbacks:
                callback(*subject)


def _covers(standing: Standing | None, valid_from_ms: int, api_token_id: str | None) -> bool:
    """Whether what is known is as new as the token."""
    if standing is None or standing.valid_from_ms < valid_from_ms:
        return False
    return api_token_id is None or api_token_id in standing.api_token_ids


def _has_changed(before: Standing, after: Standing) -> bool:
    """Whether what the user's tokens are worth has to be asked again."""
    rights = before.role, before.project_ids
    return rights != (after.role, after.project_ids) or not before.api_token_ids <= after.api_token_ids
