"""The `programs` channel: what is told of an account's programs, and what the clock brings about."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from broker.clock import SystemClock, to_datetime
from broker.domain.programs import Program
from broker.owners import channel
from broker.owners.channel import ProgramsChannel
from broker.owners.commands import DeleteProgram, UpdateProgram
from broker.owners.log import LogLimits
from broker.owners.owner import Owner
from broker.owners.protocol import Cursor, Entry, EntryKind
from broker.owners.sessions import Follow
from broker.storage.database import Database
from broker.storage.program_changes import ProgramOutbox
from broker.storage.programs import Programs
from tests.owners.support import Gateway, ask, create_programs, fetch, ids

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

TOPIC = "demo/channel/programs"
NOON = 1_767_268_800_000


class FixedClock(SystemClock):
    """Stands at `ms` until it is moved."""

    def __init__(self, ms: int) -> None:
        self.ms = ms

    def now_ms(self) -> int:
        return self.ms


@pytest.fixture
async def database(dsn: str) -> AsyncIterator[Database]:
    database = await Database.open(dsn, size=4, timeout_s=5)
    yield database
    await database.close()


async def schedule(dsn: str, name: str, start_ms: int | None, end_ms: int | None) -> None:
    await fetch(
        dsn,
        "UPDATE programs SET scheduled_start = $2, scheduled_end = $3 WHERE id = $1",
        name,
        None if start_ms is None else to_datetime(start_ms),
        None if end_ms is None else to_datetime(end_ms),
    )


async def passed(dsn: str) -> list[tuple[str, str]]:
    rows = await fetch(
        dsn,
        "SELECT change, program->>'id' FROM program_changes WHERE change IN ('live', 'ended') ORDER BY id",
    )
    return [(r[0], r[1]) for r in rows]


async def test_changes_are_told_in_order(owner: Owner, dsn: str) -> None:
    gateway = Gateway(owner)
    await gateway.open(Follow(1, TOPIC, None))
    await create_programs(dsn, ["new"])
    owner.nudge("demo")
    await ask(owner, UpdateProgram(ids.uuid7(), "demo", "new", {"name": "Final"}))
    await ask(owner, DeleteProgram(ids.uuid7(), "demo", "new"))
    owner.nudge("demo")
    entries = await gateway.until(1, 3)
    told = [orjson.loads(entry.params) for entry in entries]
    assert [(one["channel"], one["change"]) for one in told] == [
        ("programs", "created"),
        ("programs", "updated"),
        ("programs", "deleted"),
    ]
    assert told[1]["program"]["name"] == told[2]["program"]["name"] == "Final"
    assert told[0]["program"]["live"] is False
    assert {(entry.kind, entry.seq, entry.epoch, entry.method) for entry in entries} == {
        (EntryKind.NOTICE, 0, "", "program")
    }


async def test_what_a_newer_version_writes_is_told(owner: Owner, dsn: str) -> None:
    gateway = Gateway(owner)
    await gateway.open(Follow(1, TOPIC, None))
    await create_programs(dsn, ["new"])
    await fetch(
        dsn,
        "INSERT INTO program_changes (account, change, program, time)"
        ' SELECT account, \'updated\', program::jsonb || \'{"name": "Final", "fieldOfTomorrow": 1}\', time'
        " FROM program_changes WHERE program->>'id' = 'new'",
    )
    owner.nudge("demo")
    entries = await gateway.until(1, 2)
    assert [orjson.loads(entry.params)["program"]["name"] for entry in entries] == ["new", "Final"]


async def test_lost_nudge_costs_a_second(owner: Owner, dsn: str) -> None:
    gateway = Gateway(owner)
    await gateway.open(Follow(1, TOPIC, None))
    await create_programs(dsn, ["new"])
    assert len(await gateway.until(1, 1)) == 1


async def test_follower_goes_on_after_its_cursor(owner: Owner, dsn: str) -> None:
    gateway = Gateway(owner)
    await gateway.open(Follow(1, TOPIC, None))
    cursor = gateway.cursors[1]
    await create_programs(dsn, ["x", "y"])
    await gateway.until(1, 2)
    await gateway.open(Follow(2, TOPIC, cursor), Follow(3, TOPIC, Cursor("", cursor.seq + 1)))
    entries = await gateway.until(2, 2)
    assert _ids(entries) == ["x", "y"]
    assert _ids(await gateway.until(3, 1)) == ["y"]


async def test_other_accounts_are_not_heard(owner: Owner, dsn: str) -> None:
    gateway = Gateway(owner)
    await gateway.open(Follow(1, TOPIC, None))
    await create_programs(dsn, ["x"], account="other")
    await create_programs(dsn, ["y"])
    assert _ids(await gateway.until(1, 1)) == ["y"]


async def test_program_goes_live_and_ends_on_time(
    owner: Owner, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "LOOK_S", 60.0)  # nothing is told because of a look that comes by itself
    now_ms = SystemClock().now_ms()
    await schedule(dsn, "p", now_ms + 2_000, now_ms + 2_200)
    gateway = Gateway(owner)
    await gateway.open(Follow(1, TOPIC, None))
    assert SystemClock().now_ms() < now_ms + 2_000, "followed too late to be told of the start"
    entries = await gateway.until(1, 2)
    told = [orjson.loads(entry.params) for entry in entries]
    assert [(one["change"], one["program"]["live"]) for one in told] == [("live", True), ("ended", False)]


async def test_a_change_by_which_a_program_goes_live_or_ends_is_told_with_it(
    owner: Owner, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "LOOK_S", 60.0)  # nothing is told because of a look that comes by itself
    gateway = Gateway(owner)
    await gateway.open(Follow(1, TOPIC, None))
    await create_programs(dsn, ["new", "other"])
    now_ms = SystemClock().now_ms()

    async def change(start_ms: int, end_ms: int) -> None:
        times = {"scheduled_start_time": to_datetime(start_ms), "scheduled_end_time": to_datetime(end_ms)}
        await ask(owner, UpdateProgram(ids.uuid7(), "demo", "new", times))
        owner.nudge("demo")

    await change(now_ms + 3_600_000, now_ms + 7_200_000)
    await change(now_ms - 5_000, now_ms + 7_200_000)
    await change(now_ms - 5_000, now_ms + 7_000_000)
    await change(now_ms - 5_000, now_ms - 500)
    # Neither is told again when something else passes.
    await ask(owner, UpdateProgram(ids.uuid7(), "demo", "other", {"name": "Final"}))
    owner.nudge("demo")
    told = [orjson.loads(entry.params) for entry in await gateway.until(1, 9)]
    assert [(one["change"], one["program"]["id"], one["program"]["live"]) for one in told] == [
        ("created", "new", False),
        ("created", "other", False),
        ("updated", "new", False),
        ("updated", "new", True),
        ("live", "new", True),
        ("updated", "new", True),
        ("updated", "new", False),
        ("ended", "new", False),
        ("updated", "other", False),
    ]


async def test_a_program_that_is_created_live_is_told_to_be(database: Database, dsn: str) -> None:
    clock = FixedClock(NOON)
    changes = ProgramOutbox(database, clock)
    await changes.pass_boundaries("demo")
    noon = to_datetime(NOON)
    for name, start_ms, end_ms in (("on", -60_000, 60_000), ("over", -60_000, -1), ("later", 1, 60_000)):
        program = Program(
            id=name,
            name=name,
            scheduled_start_time=to_datetime(NOON + start_ms),
            scheduled_end_time=to_datetime(NOON + end_ms),
            created_time=noon,
            updated_time=noon,
        )
        await Programs(database, clock).create("demo", program, name)
    assert await passed(dsn) == [("live", "on")]
    clock.ms = NOON + 60_000
    assert await changes.pass_boundaries("demo") == 3
    assert await passed(dsn) == [("live", "on"), ("live", "later"), ("ended", "on"), ("ended", "later")]


async def test_what_passes_before_the_first_look_is_told(database: Database, dsn: str) -> None:
    clock = FixedClock(NOON)
    channel = ProgramsChannel("demo", ProgramOutbox(database, clock), clock, LogLimits())
    await schedule(dsn, "p", NOON + 1, NOON + 9)
    await schedule(dsn, "q", NOON, NOON + 9)
    clock.ms = NOON + 5  # the database was away
    await channel._look()
    assert await passed(dsn) == [("live", "p")]


async def test_each_boundary_is_told_once(database: Database, dsn: str) -> None:
    clock = FixedClock(NOON)
    changes = ProgramOutbox(database, clock)
    await schedule(dsn, "p", NOON + 10, NOON + 20)
    assert await changes.pass_boundaries("demo") == 0
    assert await changes.next_boundary_ms("demo", NOON) == NOON + 10
    clock.ms = NOON + 9
    assert await changes.pass_boundaries("demo") == 0
    clock.ms = NOON + 10
    assert sum(await asyncio.gather(*(changes.pass_boundaries("demo") for _ in range(4)))) == 1
    clock.ms = NOON + 19
    assert await changes.pass_boundaries("demo") == 0
    assert await changes.next_boundary_ms("demo", NOON + 19) == NOON + 20
    clock.ms = NOON + 20
    assert await ProgramOutbox(database, clock).pass_boundaries("demo") == 1
    assert await passed(dsn) == [("live", "p"), ("ended", "p")]
    assert await changes.next_boundary_ms("demo", NOON + 20) is None


async def test_boundaries_of_an_outage_are_told_in_their_order(database: Database, dsn: str) -> None:
    clock = FixedClock(NOON)
    changes = ProgramOutbox(database, clock)
    await changes.pass_boundaries("demo")
    await schedule(dsn, "p", NOON + 10, NOON + 30)
    await schedule(dsn, "q", NOON + 5, NOON + 10)
    clock.ms = NOON + 60
    assert await changes.pass_boundaries("demo") == 4
    assert await passed(dsn) == [("live", "q"), ("ended", "q"), ("live", "p"), ("ended", "p")]


async def test_program_without_both_times_or_of_no_length_is_never_live(database: Database, dsn: str) -> None:
    clock = FixedClock(NOON)
    changes = ProgramOutbox(database, clock)
    await changes.pass_boundaries("demo")
    await schedule(dsn, "p", NOON + 10, None)
    await schedule(dsn, "q", NOON + 10, NOON + 10)
    clock.ms = NOON + 60
    await changes.pass_boundaries("demo")
    assert await passed(dsn) == [("ended", "q")]


async def test_long_gone_boundaries_are_not_told(database: Database, dsn: str) -> None:
    clock = FixedClock(NOON)
    changes = ProgramOutbox(database, clock)
    await changes.pass_boundaries("demo")
    hour = 3_600_000
    await schedule(dsn, "p", NOON + 1, NOON + 2)
    await schedule(dsn, "q", NOON + 2, NOON + 3)
    clock.ms = NOON + 2 + hour
    assert await changes.pass_boundaries("demo") == 1
    assert await passed(dsn) == [("ended", "q")]


async def test_what_many_boundaries_cost_grows_with_their_number(dsn: str) -> None:
    """Of programs that begin together: to compare each with each change told before took half a minute."""
    few, many = [await _boundaries_cost_s(dsn, programs) for programs in (300, 2_400)]
    assert many <= 24 * few, f"eight times as many cost {many:.3f} s of processor time instead of {few:.3f} s"


async def _boundaries_cost_s(dsn: str, programs: int) -> float:
    """Processor seconds of PostgreSQL for so many boundaries, each with ten changes told before it."""
    account = f"demo-{programs}"
    await create_programs(dsn, [f"program-{number}" for number in range(programs)], account)
    await fetch(
        dsn,
        "UPDATE programs SET scheduled_start = $2, scheduled_end = $3 WHERE account = $1",
        account,
        to_datetime(NOON + 10),
        to_datetime(NOON + 20),
    )
    await fetch(
        dsn,
        "INSERT INTO program_changes (account, change, program, time)"
        " SELECT account, 'live', jsonb_build_object('id', id), $2 FROM programs, generate_series(1, 10)"
        " WHERE account = $1",
        account,
        to_datetime(NOON + 5),
    )
    database = await Database.open(dsn, size=1, timeout_s=60)
    try:
        changes = ProgramOutbox(database, FixedClock(NOON + 15))
        pid = await database.fetchval("SELECT pg_backend_pid()")
        before_s = _processor_s(pid)
        assert await changes.pass_boundaries(account, NOON) == programs
        return _processor_s(pid) - before_s
    finally:
        await database.close()


def _processor_s(pid: int) -> float:
    """Of a process with one thread. Linux counts nanoseconds here; psutil has its ticks of 10 ms."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def _ids(entries: list[Entry]) -> list[str]:
    return [orjson.loads(entry.params)["program"]["id"] for entry in entries]
