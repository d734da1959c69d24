"""How votes of watched polls came, as counts, in PostgreSQL.

A poll has at most a row for each minute of the last day, and one for each of its largest networks.
"""

from collections.abc import Sequence
from typing import NamedTuple

from broker.storage.database import Repository

OTHER_NETWORKS = 0
MAX_NETWORKS = 1_000
MAX_MINUTES = 1_440

_LOCK = 0x766F7465  # one process adds at a time, so that none waits for another's rows in a circle

_ADD_MINUTES = """
INSERT INTO vote_minutes (poll, minute, votes, in_row)
SELECT w.*
FROM unnest($1::bigint[], $2::integer[], $3::bigint[], $4::bigint[]) AS w (poll, minute, votes, in_row)
JOIN (SELECT uid FROM answer_polls WHERE uid = ANY ($1) ORDER BY uid FOR KEY SHARE) q ON q.uid = w.poll
ON CONFLICT (poll, minute) DO UPDATE
SET votes = vote_minutes.votes + EXCLUDED.votes, in_row = vote_minutes.in_row + EXCLUDED.in_row
"""
_ADD_NETWORKS = """
INSERT INTO vote_networks (poll, network, votes)
SELECT w.* FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS w (poll, network, votes)
JOIN answer_polls q ON q.uid = w.poll
ON CONFLICT (poll, network) DO UPDATE SET votes = vote_networks.votes + EXCLUDED.votes
"""
_DROP_MINUTES = f"""
DELETE FROM vote_minutes m
USING (SELECT poll, max(minute) AS newest FROM vote_minutes WHERE poll = ANY ($1::bigint[]) GROUP BY poll) n
WHERE m.poll = n.poll AND m.minute <= n.newest - {MAX_MINUTES}
"""  # noqa: S608  # a constant
_POOL_NETWORKS = f"""
WITH ranked AS (
    SELECT poll, network, row_number() OVER (PARTITION BY poll ORDER BY votes DESC, network) AS place
    FROM vote_networks WHERE poll = ANY ($1::bigint[]) AND network <> {OTHER_NETWORKS}
), small AS (
    DELETE FROM vote_networks v USING ranked r
    WHERE v.poll = r.poll AND v.network = r.network AND r.place > {MAX_NETWORKS}
    RETURNING v.poll, v.votes
)
INSERT INTO vote_networks (poll, network, votes)
SELECT poll, {OTHER_NETWORKS}, sum(votes) FROM small GROUP BY poll
ON CONFLICT (poll, network) DO UPDATE SET votes = vote_networks.votes + EXCLUDED.votes
"""  # noqa: S608  # a constant
_MINUTES = "SELECT poll, minute, votes, in_row FROM vote_minutes WHERE poll = ANY ($1) ORDER BY poll, minute"
_NETWORKS = "SELECT poll, network, votes FROM vote_networks WHERE poll = ANY ($1) ORDER BY poll, votes DESC"


class MinuteRow(NamedTuple):
    """Votes of a poll in a minute since 1970, and how many of them had names that came in rows."""

    poll: int
    minute: int
    votes: int
    in_row: int


class NetworkRow(NamedTuple):
    """Votes of a poll from a network, as a hash."""

    poll: int
    network: int
    votes: int


class StoredPatterns(Repository):
    """The repository. Every method raises `Unavailable` while the database is unavailable."""

    async def add(
        self, minutes: Sequence[tuple[int, int, int, int]], networks: Sequence[tuple[int, int, int]]
    ) -> None:
        """Add counts of votes, and of those in rows, by poll and minute, and of votes by poll and network."""
        polls = sorted({row[0] for row in minutes})
        async with self._database.transaction() as connection:
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
            await connection.execute(_ADD_MINUTES, *map(list, zip(*minutes, strict=True)))
            await connection.execute(_ADD_NETWORKS, *map(list, zip(*networks, strict=True)))
            await connection.execute(_DROP_MINUTES, polls)
            await connection.execute(_POOL_NETWORKS, polls)

    async def read(self, polls: Sequence[int]) -> tuple[list[MinuteRow], list[NetworkRow]]:
        """The counts of polls at one moment: by minute, oldest first, and by network, largest first."""
        async with (
            self._database.connection() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            minutes = await connection.fetch(_MINUTES, polls)
            networks = await connection.fetch(_NETWORKS, polls)
        return [MinuteRow(*row) for row in minutes], [NetworkRow(*row) for row in networks]
