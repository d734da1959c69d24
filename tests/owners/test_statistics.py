"""What an owner counts, what it writes of deletions, and the house that slot 0 keeps."""

from datetime import UTC, datetime, timedelta

import pytest

from broker.domain.audit import Actor
from broker.domain.statistics import Amount, Figures, Subject
from broker.errors import NotFound
from broker.owners.commands import DeleteProgram
from broker.owners.owner import Owner
from broker.storage.statistics import Statistics
from tests.owners.conftest import SETTINGS
from tests.owners.support import ask, delete, fetch, ids, publish, published

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

COUNTED = (
    "SELECT program_id, sum(events)::int AS events FROM statistics GROUP BY program_id ORDER BY program_id"
)


async def counted(dsn: str) -> dict[str, int]:
    return {row["program_id"]: row["events"] for row in await fetch(dsn, COUNTED)}


async def test_a_clean_end_loses_no_event(owner: Owner, dsn: str) -> None:
    await published(owner, publish(count=3))
    (event, _) = await published(owner, publish("q", count=2))
    await ask(owner, delete(event["id"], "q"))
    with pytest.raises(NotFound):
        await ask(owner, publish("unknown"))
    assert await counted(dsn) == {}  # nothing is written with a commit
    await owner.close()
    assert await counted(dsn) == {"": 5, "p": 3, "q": 2}


async def test_a_command_that_comes_twice_counts_once(owner: Owner, dsn: str) -> None:
    for command in (publish(count=2), publish(key="k")):
        await ask(owner, command)
        await ask(owner, command)
    assert owner._recorder is not None
    await owner._recorder.flush()
    await ask(owner, publish(key="k"))
    await owner.close()
    assert await counted(dsn) == {"": 3, "p": 3}


async def test_the_next_owner_goes_on_counting(dsn: str) -> None:
    for _ in range(2):
        owner = await Owner.start(SETTINGS, dsn, 0)
        await published(owner, publish(count=2))
        await owner.close()
    assert await counted(dsn) == {"": 4, "p": 4}


async def test_a_deletion_that_comes_twice_is_told_once(owner: Owner, dsn: str) -> None:
    deletion = DeleteProgram(ids.uuid7(), "demo", "p", Actor("7", "kim"))
    for _ in range(2):
        assert await ask(owner, deletion) is None
    refused = DeleteProgram(ids.uuid7(), "demo", "p", Actor("7", "kim"))
    with pytest.raises(NotFound):
        await ask(owner, refused)
    rows = await fetch(dsn, "SELECT account, actor_id, actor_name, action, target_type, target_id FROM audit")
    assert [tuple(row) for row in rows] == [("demo", "7", "kim", "program.deleted", "program", "p")]


async def test_the_house_is_kept(owner: Owner, dsn: str) -> None:
    now = datetime.now(UTC)
    for batch, days in enumerate((0, 3, 8), start=1):
        moment_ms = int((now - timedelta(days=days)).timestamp() * 1_000) // 60_000 * 60_000
        amount = Amount(moment_ms, Subject("demo"), Figures(events=1))
        await Statistics(owner._database).add("test", batch, [amount])
    await ask(owner, DeleteProgram(ids.uuid7(), "demo", "p", Actor("7", "kim")))
    await ask(owner, DeleteProgram(ids.uuid7(), "demo", "q", Actor("7", "kim")))
    await fetch(dsn, "UPDATE audit SET time = time - interval '400 days 1 s' WHERE target_id = 'p'")
    await owner._housekeeping.run_once()
    rows = await fetch(dsn, "SELECT span, count(*) AS rows FROM statistics GROUP BY span")
    # the eighth day's minute is over the seven days; today is neither an hour nor a day yet
    assert {row["span"]: row["rows"] for row in rows} == {"minute": 2, "hour": 2, "day": 2}
    assert [row["target_id"] for row in await fetch(dsn, "SELECT target_id FROM audit")] == ["q"]
