"""Histories that programs no longer use: erased, replaced by an import, or deleted with their program.

Nobody reads them any more, with one exception: a publish that is tried again, because its answer was lost, is
known by its events, also when they were erased in between. So they are kept for a while; then their rows are
deleted, some at a time, so that nobody waits for it.
"""

from datetime import timedelta

from broker.storage.database import Repository, rows_of

_OLDEST = """
SELECT history FROM former_histories WHERE left_time <= now() - $1::interval
ORDER BY left_time LIMIT 1 FOR UPDATE SKIP LOCKED
"""
_DELETE = """
DELETE FROM {0} WHERE history = $1 AND seq IN (SELECT seq FROM {0} WHERE history = $1 ORDER BY seq LIMIT $2)
"""
_DELETE_ROWS = (_DELETE.format("events"), _DELETE.format("event_changes"))
_FORGET = "DELETE FROM former_histories WHERE history = $1"


class FormerHistories(Repository):
    """Deletes them. Two at a time do no harm."""

    async def purge(self, kept: timedelta, limit: int) -> bool:
        """Delete at most `limit` rows of each kind of the oldest history that was left `kept` ago or longer.

        Returns whether there may be more to do. Raises Unavailable.
        """
        async with self._database.transaction() as connection:
            history = await connection.fetchval(_OLDEST, kept)
            if history is None:
                return False
            done = [await connection.execute(statement, history, limit) for statement in _DELETE_ROWS]
            if all(rows_of(tag) < limit for tag in done):
                await connection.execute(_FORGET, history)
            return True
