"""Events: read, filter and stream them as finished JSON. They are written by their owners (`broker.owners`).

The server concatenates each event's JSON from its columns: what the columns may hold (ids, epochs and event
names have small alphabets, metadata is JSON already) needs no escaping, and nothing is parsed on the way.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from broker.errors import NotFound, Unavailable
from broker.storage.database import Database
from broker.storage.text_search import TextSearch

_CREATED = """to_char(e.created_time AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')"""
_JSON = f"""
    concat('{{"seq":', e.seq, ',"epoch":"', h.epoch, '","id":"', e.id, '","programId":"', p.id,
           '","createdTime":"', {_CREATED}, '","timestamp":', e.timestamp, ',"timecode":', e.timecode,
           ',"event":"', e.event, '","metadata":', e.metadata, '}}')
"""
_FROM = """
    FROM programs p JOIN program_heads h ON h.program_uid = p.uid JOIN events e ON e.history = h.history
    WHERE p.account = $1 AND p.id = $2 AND NOT e.deleted
"""
_GET = f"SELECT {_JSON} {_FROM} AND e.id = $3"

SORTS = {
    "timecode": "e.timecode",
    "seq": "e.seq",
    "id": "e.id",
    "createdTime": "e.created_time",
    "timestamp": "e.timestamp",
    "event": 'e.event COLLATE "C"',
}
STATUSES = {"published": "NOT e.imported", "imported": "e.imported"}

# 200 events of an ordinary 300 bytes are one send buffer; of the largest they are 13 MB.
_PAGE = 200
# A reader may take this long for a page; it holds a connection, and slower ones must not use up the pool.
_IDLE = "SET LOCAL idle_in_transaction_session_timeout = '30s'"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRange:
    """Which events a list has: timecodes from `start` to `end`, inclusive; None is without bound.

    With `or_created` an event is also in the range when it was created in it.
    """

    start: int | None = None
    end: int | None = None
    or_created: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EventQuery:
    """What a filter selects; None selects everything. `sort` is one of `SORTS`, `statuses` of `STATUSES`."""

    limit: int
    skip: int
    sort: str
    descending: bool
    search: str | None = None
    ids: Sequence[str] | None = None
    statuses: Sequence[str] | None = None


class Events:
    """The events' repository.

    Args:
        streams: how many lists may be streamed at a time; each holds a connection of the pool while it has
            more than one page.
        wait_s: how long a list waits for its turn to stream.
    """

    def __init__(self, database: Database, *, streams: int = 4, wait_s: float = 10.0) -> None:
        self._database = database
        self._search = TextSearch(database)
        self._streams = asyncio.Semaphore(streams)
        self._wait_s = wait_s

    async def get(self, account: str, program_id: str, event_id: str) -> bytes:
        """The JSON of one event; `event_id` is a UUID. Raises NotFound."""
        async with self._database.connection() as connection:
            text = await connection.fetchval(_GET, account, program_id, event_id)
        if text is None:
            raise NotFound(f"there is no event {event_id} in program {program_id}")
        return bytes(text, "utf-8")

    async def stream(
        self, account: str, program_id: str, selected: EventRange
    ) -> AsyncGenerator[list[bytes]]:
        """The JSON of each selected event, in pages, ordered by (timecode, seq), all of one moment.

        Close the iterator (`aclose`) when it is left before its end: it holds a connection.

        Raises:
            Unavailable: the database is down, the lists that stream already are too many, or the reader took
                too long between two pages.
        """
        values: list[Any] = [account, program_id]
        condition = _range_condition(selected, values)
        statement = f"SELECT {_JSON} {_FROM} {condition} ORDER BY e.timecode, e.seq"
        async with self._streaming(), self._database.transaction() as connection:
            await connection.execute(_IDLE)
            cursor = await connection.cursor(statement, *values)
            while rows := await cursor.fetch(_PAGE):
                yield [row[0].encode() for row in rows]

    async def filter(self, account: str, program_id: str, query: EventQuery) -> tuple[list[bytes], int]:
        """One page of the JSON of the events that `query` selects, and how many there are in all."""
        values: list[Any] = [account, program_id]
        condition = await self._condition(query, values)
        order = "DESC" if query.descending else "ASC"
        statement = f"""
            WITH matching AS (SELECT e.seq, {SORTS[query.sort]} AS sorted {_FROM} {condition}),
            page AS (SELECT seq, sorted FROM matching ORDER BY sorted {order}, seq {order}
                     LIMIT {query.limit} OFFSET {query.skip})
            SELECT t.total, l.json FROM (SELECT count(*) AS total FROM matching) t
            LEFT JOIN (SELECT page.seq, page.sorted, {_JSON} AS json
                       {_FROM.replace("WHERE", "JOIN page ON page.seq = e.seq WHERE")}) l ON true
            ORDER BY l.sorted {order}, l.seq {order}
        """  # noqa: S608 - made of constants and integers; values are parameters
        async with self._database.connection() as connection:
            rows = await connection.fetch(statement, *values)
        return [row["json"].encode() for row in rows if row["json"] is not None], rows[0]["total"]

    async def _condition(self, query: EventQuery, values: list[Any]) -> str:
        parts = [""]
        if query.search:
            values.append(query.search)
            parts.append(await self._search.condition(("e.event", "e.metadata"), f"${len(values)}"))
        if query.ids is not None:
            values.append(list(query.ids))
            parts.append(f"e.id = ANY(${len(values)}::uuid[])")
        if query.statuses is not None:
            parts.append(f"({' OR '.join(STATUSES[status] for status in query.statuses)})")
        return " AND ".join(parts)

    @asynccontextmanager
    async def _streaming(self) -> AsyncIterator[None]:
        try:
            await asyncio.wait_for(self._streams.acquire(), self._wait_s)
        except TimeoutError:
            raise Unavailable("too many lists are being read", retry_after_s=1) from None
        try:
            yield
        finally:
            self._streams.release()


def _range_condition(selected: EventRange, values: list[Any]) -> str:
    parts: list[tuple[str, str]] = []
    for operator, bound in ((">=", selected.start), ("<=", selected.end)):
        if bound is not None:
            values.append(bound)
            parts.append((operator, f"${len(values)}::bigint"))
    if not parts:
        return ""
    condition = " AND ".join(f"e.timecode {operator} {bound}" for operator, bound in parts)
    if selected.or_created:
        created = "floor(extract(epoch FROM e.created_time) * 1000)"
        either = " AND ".join(f"{created} {operator} {bound}" for operator, bound in parts)
        condition = f"({condition} OR {either})"
    return f"AND {condition}"
