"""Analytics in PostgreSQL: each account's Matomo, the owner of each site, and the lease of a set-up.

A set-up holds a lease on its project. The lease ends by the database's clock; whoever writes renews it in the
same transaction and fails when another one has it, so that two set-ups never write side by side. Ids go into
the project's metadata under the lock of its row, which changes by users take too: none is lost.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import orjson

from broker.clock import Clock, to_datetime
from broker.domain.audit import Actor, AuditEntry
from broker.errors import Conflict
from broker.storage.accounts import unknown_account
from broker.storage.audit import append_audit
from broker.storage.database import Database
from broker.storage.projects import unknown_project

_FIND = """
SELECT p.name, p.metadata::text AS metadata, a.url, a.token, a.reader, a.reader_token
FROM projects p LEFT JOIN analytics_platforms a ON a.account = p.account
WHERE p.account = $1 AND p.id = $2
"""
_PUT = """
INSERT INTO analytics_platforms (account, url, token, reader, reader_token) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (account) DO UPDATE
SET url = EXCLUDED.url, token = EXCLUDED.token, reader = EXCLUDED.reader, reader_token = EXCLUDED.reader_token
"""
_REMOVE = "DELETE FROM analytics_platforms WHERE account = $1"
_LEASE = """
INSERT INTO analytics_setups AS s (account, project_id, holder, expires)
VALUES ($1, $2, $3, now() + make_interval(secs => $4))
ON CONFLICT (account, project_id) DO UPDATE SET holder = EXCLUDED.holder, expires = EXCLUDED.expires
WHERE s.expires <= now() OR s.holder = EXCLUDED.holder
RETURNING true
"""
_RENEW = """
UPDATE analytics_setups SET expires = now() + make_interval(secs => $4)
WHERE account = $1 AND project_id = $2 AND holder = $3 RETURNING true
"""
_RELEASE = "DELETE FROM analytics_setups WHERE account = $1 AND project_id = $2 AND holder = $3"
_METADATA = """
SELECT metadata::text FROM projects WHERE account = $1 AND id = $2 FOR NO KEY UPDATE
"""
_EXISTS = "SELECT EXISTS (SELECT FROM projects WHERE account = $1 AND id = $2)"
_KEEP = "UPDATE projects SET metadata = $3, updated_time = $4 WHERE account = $1 AND id = $2"
_CLAIM = """
INSERT INTO analytics_sites (url, id_site, account) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING
"""
_OTHERS = "SELECT id_site FROM analytics_sites WHERE url = $1 AND id_site = ANY($2) AND account <> $3"
# Compared as JSON: for a text, PostgreSQL unescapes all of the metadata, and fails at what no text can have.
_NAMED_TWICE = """
SELECT EXISTS (
    SELECT FROM projects
    WHERE account = $1 AND id <> $2 AND (metadata #> '{analytics,idSite}')::text = ANY($3)
)
"""


@dataclass(frozen=True, slots=True)
class MatomoAccess:
    """Where an account's Matomo is, and who we are there. `url` has no slash at its end."""

    url: str
    token: str = field(repr=False)
    reader: str
    reader_token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class AnalyticsProject:
    """What analytics needs of a project; `access` is None where the account has none of its own."""

    id: str
    name: str
    metadata: Mapping[str, Any]
    access: MatomoAccess | None


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to set up a project's site, `seconds` long from each renewal; `holder` is unique."""

    account: str
    project_id: str
    holder: str
    seconds: float


class Analytics:
    """The repository. Every method raises `Unavailable` while the database is unavailable."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def get_project(self, account: str, project_id: str) -> AnalyticsProject:
        """A project with its account's Matomo. Raises NotFound."""
        row = await self._database.fetchrow(_FIND, account, project_id)
        if row is None:
            raise unknown_project(project_id)
        access = row["url"] and MatomoAccess(row["url"], row["token"], row["reader"], row["reader_token"])
        return AnalyticsProject(project_id, row["name"], orjson.loads(row["metadata"]), access)

    async def set_access(self, account: str, access: MatomoAccess | None, by: Actor) -> None:
        """Give an account a Matomo of its own, or none, and log it without the tokens. Raises NotFound."""
        async with self._database.transaction() as connection:
            try:
                if access is None:
                    await connection.execute(_REMOVE, account)
                else:
                    await connection.execute(
                        _PUT, account, access.url, access.token, access.reader, access.reader_token
                    )
            except asyncpg.ForeignKeyViolationError:
                raise unknown_account() from None
            told = access and {"url": access.url, "reader": access.reader}
            await append_audit(
                connection, account, AuditEntry(by, "account.updated", account, {"matomo": told})
            )

    async def others(self, account: str, url: str, sites: Sequence[str]) -> set[str]:
        """Those of the sites that belong to other accounts."""
        if not sites:
            return set()
        return {row["id_site"] for row in await self._database.fetch(_OTHERS, url, list(sites), account)}

    async def is_named_twice(self, account: str, project_id: str, id_site: str) -> bool:
        """Whether another project of the account names the site, as a number or as a text."""
        written = [id_site, f'"{id_site}"']
        return bool(await self._database.fetchval(_NAMED_TWICE, account, project_id, written))

    async def take_lease(self, lease: Lease) -> None:
        """Begin a set-up. Raises Conflict while another one has the lease, NotFound without the project."""
        async with self._database.writing() as connection:
            try:
                taken = await connection.fetchval(
                    _LEASE, lease.account, lease.project_id, lease.holder, lease.seconds
                )
            except asyncpg.ForeignKeyViolationError:
                raise unknown_project(lease.project_id) from None
        if not taken:
            raise Conflict("a set-up of this project's site is in progress, or was interrupted a moment ago")

    async def release(self, lease: Lease) -> None:
        """End a set-up, so that the next one need not wait."""
        async with self._database.writing() as connection:
            await connection.execute(_RELEASE, lease.account, lease.project_id, lease.holder)

    async def renew(self, lease: Lease, entry: AuditEntry | None = None) -> None:
        """Go on with a set-up, and log an entry.

        Raises:
            Conflict: another one has taken over.
            NotFound: the project is gone.
        """
        async with self._database.transaction() as connection:
            await _renew(connection, lease)
            if entry is not None:
                await append_audit(connection, lease.account, entry)

    async def claim(self, lease: Lease, url: str, id_site: str) -> bool:
        """Make a site the account's; false when it is another one's. Raises what `renew` does."""
        async with self._database.transaction() as connection:
            await _renew(connection, lease)
            return await _claim(connection, lease.account, url, id_site)

    async def keep(
        self,
        lease: Lease,
        url: str,
        id_site: str,
        change: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    ) -> bool:
        """Claim the site, and store what `change` makes of the project's metadata as it is now.

        Returns:
            False, and nothing is done, when the site is another account's.

        Raises:
            Conflict: another set-up has taken over.
            NotFound: the project is gone.
        """
        async with self._database.transaction() as connection:
            # The project before its lease, as a deletion of the project takes them.
            stored = await connection.fetchval(_METADATA, lease.account, lease.project_id)
            if stored is None:
                raise unknown_project(lease.project_id)
            await _renew(connection, lease)
            if not await _claim(connection, lease.account, url, id_site):
                return False
            text = orjson.dumps(change(orjson.loads(stored))).decode()
            now = to_datetime(self._clock.now_ms())
            await connection.execute(_KEEP, lease.account, lease.project_id, text, now)
        return True


async def _renew(connection: asyncpg.Connection, lease: Lease) -> None:
    if not await connection.fetchval(_RENEW, lease.account, lease.project_id, lease.holder, lease.seconds):
        if not await connection.fetchval(_EXISTS, lease.account, lease.project_id):
            raise unknown_project(lease.project_id)
        raise Conflict("another set-up of this project's site has taken over")


async def _claim(connection: asyncpg.Connection, account: str, url: str, id_site: str) -> bool:
    await connection.execute(_CLAIM, url, id_site, account)
    # READ COMMITTED: this statement sees the row that was there before ours.
    return not await connection.fetch(_OTHERS, url, [id_site], account)
