"""The quotas of accounts in PostgreSQL, and what accounts use of them.

Those of programs and of storage are kept where these are stored (`broker.storage.programs`, `store_value` of
the migrations), exactly; those of events and images are rates, which `broker.limits.shared_rates` keeps.
"""

from collections.abc import Mapping
from typing import NamedTuple

import asyncpg
import orjson

from broker.domain.audit import Actor, AuditEntry
from broker.domain.quotas import QuotaName
from broker.errors import PayloadTooLarge
from broker.metrics.counts import QUOTA_REFUSALS
from broker.storage.accounts import unknown_account
from broker.storage.audit import append_audit
from broker.storage.database import Repository

# A name that is not among the keys keeps its number.
_SET = """
UPDATE accounts SET
    quota_programs = CASE WHEN $2::jsonb ? 'programs' THEN ($2->>'programs')::bigint ELSE quota_programs END,
    quota_events = CASE WHEN $2::jsonb ? 'events' THEN ($2->>'events')::integer ELSE quota_events END,
    quota_storage = CASE WHEN $2::jsonb ? 'storage' THEN ($2->>'storage')::bigint ELSE quota_storage END,
    quota_images = CASE WHEN $2::jsonb ? 'images' THEN ($2->>'images')::integer ELSE quota_images END
WHERE name = $1 RETURNING name
"""
_USED = """
SELECT (SELECT count(*) FROM programs WHERE account = $1),
    (SELECT coalesce(sum(octets), 0)::bigint FROM storage_usage WHERE account = $1)
"""
_FIND_PROGRAMS = "SELECT quota_programs FROM accounts WHERE name = $1"
_HOLD_PROGRAMS = f"{_FIND_PROGRAMS} FOR NO KEY UPDATE"
_COUNT_PROGRAMS = "SELECT count(*) FROM programs WHERE account = $1"


class QuotaUse(NamedTuple):
    """What an account has of that which does not pass: programs, and bytes of stored values."""

    programs: int
    storage: int


class AccountQuotas(Repository):
    """The repository. Every method raises `Unavailable` while the database is unavailable."""

    async def set(self, account: str, changes: Mapping[QuotaName, int | None], by: Actor) -> None:
        """Set some quotas of an account, or lift them with None. Processes follow within seconds.

        What is there beyond a quota stays; there will be no more.

        Raises:
            NotFound: there is no such account.
        """
        told = {name.value: number for name, number in changes.items()}
        async with self._database.transaction() as connection:
            if await connection.fetchval(_SET, account, orjson.dumps(told).decode()) is None:
                raise unknown_account()
            entry = AuditEntry(by, "account.updated", account, {"quotas": told})
            await append_audit(connection, account, entry)

    async def used(self, account: str) -> QuotaUse:
        """What the account has now."""
        return QuotaUse(*await self._database.fetchrow(_USED, account))


async def hold_program_quota(connection: asyncpg.Connection, account: str) -> None:
    """Return when the account may have one more program, which the caller's transaction makes.

    With a quota others who make one wait until that transaction ends, so that none counts what is not there
    yet. To be called before anything else is locked.

    Raises:
        PayloadTooLarge: it has as many as it may.
    """
    if await connection.fetchval(_FIND_PROGRAMS, account) is None:
        return
    quota = await connection.fetchval(_HOLD_PROGRAMS, account)
    if quota is not None and await connection.fetchval(_COUNT_PROGRAMS, account) >= quota:
        QUOTA_REFUSALS.add(QuotaName.PROGRAMS.value)
        raise PayloadTooLarge(f"the account has reached its quota of {quota} programs")
