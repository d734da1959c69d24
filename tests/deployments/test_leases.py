"""What `broker up` does with the lease of the conductor, on a real database; its conductor only listens."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from broker.clock import boot_s
from broker.concurrency.tasks import cancel_and_wait
from broker.deployments import conductor_process, supervisor
from broker.deployments.data_dir import claim
from broker.deployments.supervisor import Supervisor
from broker.settings import Settings
from broker.setup_error import SetupError
from broker.storage.conductor_lease import ConductorLease
from tests.storage.answers import fetch

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

GIVES_UP_S = 60.0
AWAY = "ALTER DATABASE {} ALLOW_CONNECTIONS false"
BACK = "ALTER DATABASE {} ALLOW_CONNECTIONS true"
CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1"


class Run:
    """A `broker up` without its signals. `reports` are what it told people: parts and details."""

    def __init__(self, dsn: str, directory: Path, load: Callable[[], Settings] | None = None) -> None:
        self.held = claim(directory)
        self.reports: list[tuple[str, str]] = []
        self._reported = asyncio.Event()
        self._is_closed = False
        settings = Settings.load({"BROKER_DATABASE_URL": dsn}, data_dir=directory)
        self.supervisor = Supervisor(settings, self._report, load)
        self.ended = asyncio.create_task(self.supervisor._run(self.held))

    async def until(self, part: str, times: int = 1) -> list[str]:
        """The details of a part, once it was told so many times; raises what the run ends with before."""
        async with asyncio.timeout(GIVES_UP_S):
            while len(details := [each[1] for each in self.reports if each[0] == part]) < times:
                self._reported.clear()
                reported = asyncio.create_task(self._reported.wait())
                await asyncio.wait({reported, self.ended}, return_when=asyncio.FIRST_COMPLETED)
                if self.ended.done():
                    await self.ended
        return details

    async def close(self) -> None:
        """End it. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        await cancel_and_wait(self.ended)
        await asyncio.to_thread(self.held.remove_scratch)
        self.held.release()

    def _report(self, part: str, detail: str) -> None:
        self.reports.append((part, detail))
        self._reported.set()


@pytest.fixture
async def run(own_migrated_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Run]:
    monkeypatch.setattr(conductor_process, "_PROGRAM", "tests.deployments.listening_conductor")
    monkeypatch.setattr(supervisor, "_LEASE_ROUND_S", 0.05)
    run = Run(own_migrated_dsn, tmp_path / "data")
    yield run
    with suppress(SetupError):
        await run.close()


@pytest.fixture
async def other(own_migrated_dsn: str) -> AsyncIterator[ConductorLease]:
    """Another `broker up`, which has the lease."""
    lease = await ConductorLease.open(own_migrated_dsn, "other")
    assert await lease.take()
    yield lease
    await lease.close()


async def test_spare_whose_conductor_dies_starts_nothing_before_it_has_the_lease(
    other: ConductorLease, run: Run, own_migrated_dsn: str
) -> None:
    await run.until("waiting")
    assert await run.until("began") == ["not told"]
    await other.give_up()
    assert await run.until("dsn") == [f"{own_migrated_dsn} in term 2"]
    (lease,) = (await run.until("lease"))[:1]
    assert float(lease) > boot_s()


async def test_conductor_hears_when_its_lease_was_renewed(run: Run) -> None:
    first, *_, third = await run.until("lease", times=3)
    assert float(third) > float(first)


async def test_holder_ends_when_another_one_had_the_lease_in_between(run: Run, own_migrated_dsn: str) -> None:
    await run.until("ready")
    await fetch(own_migrated_dsn, "UPDATE conductor_lease SET term = term + 1, ends = '-infinity'")
    with pytest.raises(SetupError, match="another `broker up` took over"):
        await run.until("never")


async def test_spare_outlives_a_database_that_is_away(
    other: ConductorLease,
    run: Run,
    own_migrated_dsn: str,
    postgres_server: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    name = urlsplit(own_migrated_dsn).path[1:]
    server = f"postgresql://broker@/postgres?host={postgres_server}"
    await run.until("waiting")
    await fetch(server, AWAY.format(name))
    await fetch(server, CUT, name)
    async with asyncio.timeout(GIVES_UP_S):
        while "conductor_lease_unknown" not in caplog.messages:
            await asyncio.wait({run.ended}, timeout=0.05)
            if run.ended.done():
                await run.ended
    await fetch(server, BACK.format(name))
    await other.give_up()
    await run.until("ready")
