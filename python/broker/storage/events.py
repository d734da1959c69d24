"""Events: reads, filters and streams them as finished JSON. Their owners write them (`broker.owners`).

The server concatenates each event's JSON from its columns: what the columns may hold (ids, epochs and event
names have small alphabets, metadata is JSON already) needs no escaping, and nothing is parsed on the way.

A list is one moment of a history, named by its epoch and the seq of its newest push. Its pages are found
again by the last event of the one before (keyset pagination), so nothing is held open between them: events
with a higher seq are left out, and those that were changed or deleted since are read as `event_changes` kept
them. Where a client names the moment, deleted events are left out: it may name any from before a deletion.
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg

from broker.errors import Conflict, NotFound, Unavailable
from broker.storage.conditions import Conditions
from broker.storage.database import Database, Repository
from broker.storage.text_search import TextSearch

_CREATED = """to_char(e.created_time AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')"""


def _json(epoch: str, program: str) -> str:
    """The JSON of an event `e`, of whose epoch and program these are the expressions."""
    return f"""
    concat('{{"seq":', e.seq, ',"epoch":"', {epoch}, '","id":"', e.id, '","programId":"', {program},
           '","createdTime":"', {_CREATED}, '","timestamp":', e.timestamp, ',"timecode":', e.timecode,
           ',"event":"', e.event, '","metadata":', e.metadata, '}}')
"""


_ITEM = _json("h.epoch", "p.id")
_FROM = """
    FROM programs p JOIN program_heads h ON h.program_uid = p.uid JOIN events e ON e.history = h.history
    WHERE p.account = $1 AND p.id = $2 AND NOT e.deleted
"""
_GET = f"SELECT {_ITEM} {_FROM} AND e.id = $3"
_HEAD = """
    SELECT p.id, h.history, h.epoch, h.seq FROM programs p JOIN program_heads h ON h.program_uid = p.uid
    WHERE p.account = $1 AND p.id = $2
"""
SORTS = {
    "timecode": "e.timecode",
    "seq": "e.seq",
    # of one program, so the same for all
    "epoch": "''",
    "programId": "''",
    "id": "e.id",
    "createdTime": "e.created_time",
    "timestamp": "e.timestamp",
    "event": 'e.event COLLATE "C"',
}
STATUSES = {"published": "NOT e.imported", "imported": "e.imported"}

# A page is of about so many bytes, guessed from the one before; the first of so many events.
_PAGE_BYTES = 256 << 10
_FIRST_EVENTS = 200
_MOST_EVENTS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRange:
    """Which events a list has: timecodes from `start` to `end`, inclusive; None is without bound.

    With `or_created` an event is also in the range when it was created in it.
    """

    start: int | None = None
    end: int | None = None
    or_created: bool = False

    @property
    def needs_all(self) -> bool:
        """Whether every event of the program is read to find these: times of creation have no index."""
        return self.or_created and not (self.start is None and self.end is None)


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


@dataclass(frozen=True, slots=True)
class ListPlace:
    """Where a list of events goes on: after `timecode` and `seq`, of `epoch` as it was at its push `upto`."""

    epoch: str
    upto: int
    timecode: int
    seq: int


@dataclass(frozen=True, slots=True)
class StoredPage:
    """Some events of a list, in order; `next` is where the rest begins, None after the last one."""

    events: list[bytes]
    next: ListPlace | None


@dataclass(frozen=True, slots=True)
class _Source:
    """What the pages of one list are read from; `has_deleted`: also what was deleted after `upto`."""

    program_id: str
    history: int
    epoch: str
    upto: int
    has_deleted: bool

    def place(self, row: asyncpg.Record) -> ListPlace:
        """After this row."""
        return ListPlace(self.epoch, self.upto, row["timecode"], row["seq"])


class Events(Repository):
    """The events' repository.

    A list is read in pages, each by a short query that holds no connection while a client reads the page.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._search = TextSearch(database)

    async def get(self, account: str, program_id: str, event_id: str) -> bytes:
        """The JSON of one event; `event_id` is a UUID. Raises NotFound."""
        text = await self._database.fetchval(_GET, account, program_id, event_id)
        if text is None:
            raise NotFound(f"there is no event {event_id} in program {program_id}")
        return bytes(text, "utf-8")

    async def pages(self, account: str, program_id: str, selected: EventRange) -> AsyncGenerator[StoredPage]:
        """The selected events, ordered by (timecode, seq), in one page or more.

        All pages are of one moment, that of the first: what is published, changed, deleted, erased or
        replaced while they are read leaves them as they are.

        Raises:
            NotFound: there is no such program.
            Unavailable: the database is down, or the events were erased or replaced minutes ago.
        """
        source, rows = await self._first(account, program_id, selected, _FIRST_EVENTS)
        limit = _FIRST_EVENTS
        while True:
            events = [row["json"].encode() for row in rows[:limit]]
            place = source.place(rows[limit - 1]) if len(rows) > limit else None
            yield StoredPage(events, place)
            if place is None:
                return
            limit = _limit(sum(map(len, events)) // len(events))
            rows = await self._next(source, place, selected, limit)

    async def page(
        self,
        account: str,
        program_id: str,
        selected: EventRange,
        limit: int,
        limit_bytes: int,
        after: ListPlace | None = None,
    ) -> StoredPage:
        """At most `limit` of the selected events, and fewer when that many are over `limit_bytes`.

        Args:
            after: where an earlier page ended; its moment counts on, as far back as recovery reaches, except
                that no event is read that has been deleted since.

        Raises:
            NotFound: there is no such program.
            Conflict: its events have been erased or replaced since the first page.
        """
        asked = min(limit, _FIRST_EVENTS)
        if after is None:
            source, rows = await self._first(account, program_id, selected, asked)
        else:
            source = await self._find_source(account, program_id, after)
            rows = await self._next(source, after, selected, asked)
        events: list[bytes] = []
        size_bytes, place = 0, after
        while True:
            for row in rows[:asked]:
                event = row["json"].encode()
                size_bytes += len(event)
                if events and size_bytes > limit_bytes:
                    return StoredPage(events, place)
                events.append(event)
                place = source.place(row)
            if len(rows) <= asked:
                return StoredPage(events, None)
            asked = min(limit - len(events), _limit(size_bytes // len(events)))
            if asked <= 0:
                return StoredPage(events, place)
            assert place is not None, "there was a row"
            rows = await self._next(source, place, selected, asked)

    async def _first(
        self, account: str, program_id: str, selected: EventRange, limit: int
    ) -> tuple[_Source, list[asyncpg.Record]]:
        """The first `limit` rows, and one more when there are more."""
        values: list[Any] = [account, program_id]
        condition = _range_condition(selected, values)
        rows = await self._database.fetch(_first_page(condition, limit + 1), *values)
        if not rows:
            raise NotFound(f"there is no program {program_id}")
        source = _Source(program_id, rows[0]["history"], rows[0]["epoch"], rows[0]["upto"], has_deleted=True)
        return source, [row for row in rows if row["json"] is not None]

    async def _next(
        self, source: _Source, after: ListPlace, selected: EventRange, limit: int
    ) -> list[asyncpg.Record]:
        """The `limit` rows after a place, and one more when there are more."""
        values: list[Any] = [
            source.history, source.epoch, source.program_id, source.upto, after.timecode, after.seq,
            source.has_deleted,
        ]  # fmt: skip
        condition = _range_condition(selected, values)
        rows = await self._database.fetch(_next_page(condition, limit + 1), *values)
        if not rows[0]["is_whole"]:
            raise Unavailable("the events were erased or replaced; read them again", retry_after_s=1)
        return [row for row in rows if row["json"] is not None]

    async def _find_source(self, account: str, program_id: str, after: ListPlace) -> _Source:
        row = await self._database.fetchrow(_HEAD, account, program_id)
        if row is None:
            raise NotFound(f"there is no program {program_id}")
        if row["epoch"] != after.epoch:
            raise Conflict("the events were erased or replaced since the first page; begin again")
        upto = min(after.upto, row["seq"])
        return _Source(program_id, row["history"], row["epoch"], upto, has_deleted=False)

    async def filter(self, account: str, program_id: str, query: EventQuery) -> tuple[list[bytes], int]:
        """One page of the JSON of the events that `query` selects, and how many there are in all."""
        where = Conditions("NOT e.deleted", account, program_id)
        await self._search.add(where, ["e.event"], query.search, in_json=["e.metadata"])
        where.add_given("e.id = ANY({}::uuid[])", query.ids and list(query.ids))
        where.add_any(query.statuses and [STATUSES[status] for status in query.statuses])
        order = "DESC" if query.descending else "ASC"
        # Rows of a page are looked up by their key, each by itself: until what was imported is counted,
        # a join may be planned as a walk through the whole history for each row.
        statement = f"""
            WITH source AS MATERIALIZED ({_HEAD}),
            matching AS MATERIALIZED (
                SELECT e.seq, {SORTS[query.sort]} AS sorted FROM events e
                WHERE e.history = (SELECT history FROM source) AND {where}
            ),
            page AS MATERIALIZED (
                SELECT seq, sorted FROM matching ORDER BY sorted {order}, seq {order}
                LIMIT {query.limit} OFFSET {query.skip}
            )
            SELECT t.total, l.json FROM (SELECT count(*) AS total FROM matching) t
            LEFT JOIN (
                SELECT page.seq, page.sorted, item.json FROM page CROSS JOIN source s CROSS JOIN LATERAL (
                    SELECT {_json("s.epoch", "s.id")} AS json FROM events e
                    WHERE e.history = s.history AND e.seq = page.seq OFFSET 0
                ) item
            ) l ON true
            ORDER BY l.sorted {order}, l.seq {order}
        """  # noqa: S608 - made of constants and integers; values are parameters
        rows = await self._database.fetch(statement, *where.values)
        return [row["json"].encode() for row in rows if row["json"] is not None], rows[0]["total"]


def _first_page(condition: str, limit: int) -> str:
    """Reads the head and the first events in one statement, and so of one moment."""
    return f"""
    WITH head AS MATERIALIZED ({_HEAD})
    SELECT h.history, h.epoch, h.seq AS upto, page.* FROM head h LEFT JOIN LATERAL (
        SELECT e.timecode, e.seq, {_json("h.epoch", "h.id")} AS json
        FROM events e WHERE e.history = h.history AND NOT e.deleted {condition}
        ORDER BY e.timecode, e.seq LIMIT {limit}
    ) page ON true ORDER BY page.timecode, page.seq
    """  # noqa: S608 - made of constants and integers; values are parameters


def _next_page(condition: str, limit: int) -> str:
    """Reads on as the history was when its newest push was $4.

    Without what was published since; what was changed or, with $7, deleted since is read as it was before. A
    history that was left is read on, unless its rows may be going already (`broker.owners.housekeeping`).
    """
    return f"""
    WITH changed AS MATERIALIZED (
        SELECT DISTINCT ON (c.event_seq) c.event_seq AS seq, (c.before->>'timecode')::bigint AS timecode,
            (c.before->>'createdTime')::timestamptz AS created_time, c.before::text AS json
        FROM event_changes c WHERE c.history = $1 AND c.seq > $4 AND c.event_seq <= $4
        ORDER BY c.event_seq, c.seq
    ), page AS (
        (SELECT e.timecode, e.seq, {_json("$2::text", "$3::text")} AS json
         FROM events e
         WHERE e.history = $1 AND e.seq <= $4 AND NOT e.deleted AND (e.timecode, e.seq) > ($5, $6)
             AND NOT EXISTS (SELECT FROM changed WHERE changed.seq = e.seq) {condition}
         ORDER BY e.timecode, e.seq LIMIT {limit})
        UNION ALL
        SELECT e.timecode, e.seq, e.json FROM changed e WHERE (e.timecode, e.seq) > ($5, $6) {condition}
            AND ($7 OR EXISTS (
                SELECT FROM events n WHERE n.history = $1 AND n.seq = e.seq AND NOT n.deleted
            ))
        ORDER BY timecode, seq LIMIT {limit}
    )
    SELECT source.is_whole, page.*
    FROM (SELECT EXISTS (SELECT FROM program_heads WHERE history = $1) OR EXISTS (
              SELECT FROM former_histories WHERE history = $1 AND left_time > now() - interval '4 minutes'
          ) AS is_whole) source
    LEFT JOIN page ON true ORDER BY page.timecode, page.seq
    """  # noqa: S608 - made of constants and integers; values are parameters


def _limit(mean_bytes: int) -> int:
    """How many events of this size a page has."""
    return max(1, min(_MOST_EVENTS, _PAGE_BYTES // max(1, mean_bytes)))


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
