"""Storing many values at once, against storing them one by one; and what goes with a project."""

import asyncio
from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.postgres

_TIME = datetime(2024, 5, 1, tzinfo=UTC)
_STORE_VALUE = "SELECT store_value($1, $2, $3, $4, $5, $6, $7, $8, $9)"
_STORE_VALUES = "SELECT store_values($1, $2, $3, $4, $5, $6, $7, $8, $9)"
_ROWS = """
SELECT account, project_id, id, metadata::text, octets, superseded, created_time, caller FROM stored_values
ORDER BY account, project_id, number
"""
_USAGE = """
SELECT account, project_id, value_count, octets, anonymous_values, anonymous_octets FROM storage_usage
ORDER BY account, project_id
"""
_OF_CALLERS = "SELECT * FROM anonymous_storage_usage ORDER BY account, project_id, caller"
_MISCOUNTED = """
SELECT account, project_id, caller FROM anonymous_storage_usage WHERE value_count <= 0 OR octets < 0
UNION ALL
SELECT account, project_id, NULL FROM storage_usage u
WHERE (value_count, octets, anonymous_values, anonymous_octets) <> (
    SELECT count(*), coalesce(sum(v.octets), 0), count(v.caller),
        coalesce(sum(v.octets) FILTER (WHERE v.caller IS NOT NULL), 0)
    FROM stored_values v
    WHERE v.account = u.account AND v.project_id = u.project_id AND NOT v.superseded)
UNION ALL
(SELECT account, project_id, caller FROM (
    SELECT account, project_id, caller, value_count, octets FROM anonymous_storage_usage
    EXCEPT
    SELECT account, project_id, caller, count(*), sum(octets) FROM stored_values
    WHERE caller IS NOT NULL AND NOT superseded GROUP BY account, project_id, caller) AS wrong)
"""


@dataclass
class Arguments:
    """Of one call of `store_value`."""

    account: str
    project: str
    id: str
    metadata: str
    octets: int
    time: datetime
    caller: str
    most_values: int
    most_octets: int


def build(project: str = "a", id_: str = "x", **fields: Any) -> Arguments:
    return replace(Arguments("demo", project, id_, "{}", 2, _TIME, "", 1_000, 10_000), **fields)


@st.composite
def groups(draw: st.DrawFn) -> list[list[Arguments]]:
    """Two groups, one after the other. Often near a quota, and often with an id more than once."""
    quotas = st.tuples(st.sampled_from((2, 3, 40, 100)), st.sampled_from((10, 20, 200, 1000)))
    callers = draw(st.sampled_from((st.just(""), st.sampled_from(("", "p", "q")))))
    value = st.builds(
        Arguments,
        account=st.sampled_from(("demo", "other")),
        project=st.sampled_from(("a", "b", "a", "b", "none")),
        id=st.sampled_from(("x", "y", "z")),
        metadata=st.just(""),
        octets=st.integers(1, 9),
        time=st.just(_TIME),
        caller=callers,
        most_values=st.just(0),
        most_octets=st.just(0),
    )
    found = draw(st.lists(st.lists(value, min_size=1, max_size=8), min_size=2, max_size=2))
    quota = draw(quotas)
    for number, one in enumerate(one for group in found for one in group):
        one.metadata, one.time = f'{{"n":{number}}}', _TIME + timedelta(seconds=number)
        one.most_values, one.most_octets = draw(quotas) if draw(st.integers(0, 9)) == 0 else quota
    return found


class Store:
    """A connection, in and out of whose transactions the tests look."""

    def __init__(self, runner: asyncio.Runner, connection: asyncpg.Connection) -> None:
        self._runner = runner
        self._connection = connection

    def together(self, wanted: list[list[Arguments]]) -> tuple[Any, ...]:
        """What storing each group by one call leaves; it is taken back."""
        return self._runner.run(self._left_by(self._store_together, wanted))

    def apart(self, wanted: list[list[Arguments]]) -> tuple[Any, ...]:
        """The same by one call a value."""
        return self._runner.run(self._left_by(self._store_apart, wanted))

    async def _left_by(self, store: Any, wanted: list[list[Arguments]]) -> tuple[Any, ...]:
        transaction = self._connection.transaction()
        await transaction.start()
        try:
            outcomes = [await store(group) for group in wanted]
            rows, usage = await self._connection.fetch(_ROWS), await self._connection.fetch(_USAGE)
            usage += await self._connection.fetch(_OF_CALLERS)
            assert await self._connection.fetch(_MISCOUNTED) == []
        finally:
            await transaction.rollback()
        return outcomes, [tuple(row) for row in rows], [tuple(row) for row in usage]

    async def _store_together(self, group: list[Arguments]) -> Any:
        columns = zip(*map(astuple, group), strict=True)
        return list(await self._connection.fetchval(_STORE_VALUES, *columns))

    async def _store_apart(self, group: list[Arguments]) -> list[str]:
        return [await self._connection.fetchval(_STORE_VALUE, *astuple(one)) for one in group]


async def make_projects(dsn: str) -> asyncpg.Connection:
    connection = await asyncpg.connect(dsn)
    for account in ("demo", "other"):
        await connection.execute("INSERT INTO accounts (name, created_time) VALUES ($1, now())", account)
        for project in ("a", "b"):
            await connection.execute(
                "INSERT INTO projects (account, id, name, metadata, created_time, updated_time)"
                " VALUES ($1, $2, 'n', '{}', now(), now())",
                account,
                project,
            )
            await connection.execute("INSERT INTO storage_usage VALUES ($1, $2)", account, project)
    return connection


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def store(runner: asyncio.Runner, migrated_dsn: str) -> Iterator[Store]:
    connection = runner.run(make_projects(migrated_dsn))
    yield Store(runner, connection)
    runner.run(connection.close())


def test_together_is_as_one_by_one(store: Store) -> None:
    @settings(max_examples=250)
    @given(groups())
    def check(wanted: list[list[Arguments]]) -> None:
        assert store.together(wanted) == store.apart(wanted)

    check()


@pytest.mark.parametrize(
    ("quotas", "expected"),
    [
        ({"most_values": 60, "caller": "p"}, ["created"] * 3),
        ({"most_values": 59, "caller": "p"}, ["created", "created", "own"]),
        ({"most_octets": 120, "caller": "p"}, ["created"] * 3),
        ({"most_octets": 119, "caller": "p"}, ["created", "created", "own"]),
        ({"most_values": 3}, ["created"] * 3),
        ({"most_values": 2}, ["created", "created", "many"]),
        ({"most_octets": 6}, ["created"] * 3),
        ({"most_octets": 5}, ["created", "created", "large"]),
    ],
)
def test_together_stops_at_the_quotas(store: Store, quotas: dict[str, Any], expected: list[str]) -> None:
    outcomes, rows, _ = store.together([[build(id_=id_, **quotas) for id_ in "xyz"]])
    assert outcomes == [expected]
    assert len(rows) == expected.count("created")


def test_an_id_comes_many_times(store: Store) -> None:
    group = [build(id_=id_, metadata=f"[{n}]", octets=n) for n, id_ in enumerate("xyxx", 1)]
    outcomes, rows, usage = store.together([group, group[:1]])
    assert outcomes == [["created", "created", "replaced", "replaced"], ["replaced"]]
    assert [(row[3], row[5]) for row in rows] == [
        ("[1]", True), ("[2]", False), ("[3]", True), ("[4]", True), ("[1]", False),
    ]  # fmt: skip
    assert usage[0] == ("demo", "a", 2, 3, 0, 0)


@pytest.mark.parametrize("is_together", [True, False])
def test_what_a_token_replaces_is_the_callers_no_more(store: Store, is_together: bool) -> None:
    group = [build(id_=id_, caller=caller, octets=3) for id_, caller in (("x", "p"), ("y", "p"), ("z", "q"))]
    store_all = store.together if is_together else store.apart
    _, _, usage = store_all([group, [build(id_="x", octets=5), build(id_="z", octets=6)]])
    assert usage[0] == ("demo", "a", 3, 14, 1, 3)
    assert [row[3:] for row in usage[4:]] == [(1, 3)]


def test_hundreds_keep_their_order(store: Store) -> None:
    group = [build("ab"[n % 2], f"{-n}", metadata=f"{n}") for n in range(300)]
    _, rows, _ = store.together([group])
    assert [int(row[3]) for row in rows] == [*range(0, 300, 2), *range(1, 300, 2)]


@pytest.mark.parametrize("is_stored_first", [True, False])
def test_no_value_outlives_its_project(
    runner: asyncio.Runner, migrated_dsn: str, is_stored_first: bool
) -> None:
    """Storing and deleting at once: whichever is first, the other waits for it."""

    async def delete(connection: asyncpg.Connection) -> Any:
        return await connection.execute("DELETE FROM projects WHERE account = 'demo' AND id = 'a'")

    async def put(connection: asyncpg.Connection) -> Any:
        columns = [[value] for value in astuple(build())]
        return await connection.fetchval(_STORE_VALUES, *columns)

    async def run() -> tuple[Any, Any]:
        connection, other = await make_projects(migrated_dsn), await asyncpg.connect(migrated_dsn)
        first, second = (put, delete) if is_stored_first else (delete, put)
        try:
            await connection.fetchval(_STORE_VALUES, *([value] for value in astuple(build("b"))))
            async with connection.transaction():
                before = await first(connection)
                waiting = asyncio.create_task(second(other))
                while not await connection.fetchval(
                    "SELECT count(*) FROM pg_locks WHERE pid = $1 AND NOT granted", other.get_server_pid()
                ):
                    await connection.execute("SELECT pg_sleep(0.01)")
            after = await waiting
            return (before if is_stored_first else after), await connection.fetch(_ROWS)
        finally:
            await connection.close()
            await other.close()

    outcomes, rows = runner.run(run())
    assert outcomes == ["created" if is_stored_first else "unknown"]
    assert [row["project_id"] for row in rows] == ["b"]


def test_values_go_with_their_account(runner: asyncio.Runner, migrated_dsn: str) -> None:
    async def run() -> list[Any]:
        connection = await make_projects(migrated_dsn)
        try:
            for one in (build("a"), build("b")):
                await connection.fetchval(_STORE_VALUE, *astuple(one))
            await connection.execute("DELETE FROM accounts WHERE name = 'demo'")
            return list(await connection.fetch(_ROWS))
        finally:
            await connection.close()

    assert runner.run(run()) == []
