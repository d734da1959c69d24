"""Reloads of `broker up`, on a real database; its conductor only listens and answers."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from broker.deployments import conductor_process, supervisor
from broker.deployments.reload_record import ReloadRecord, ReloadState, read_record
from broker.settings import Settings
from broker.setup_error import SetupError
from broker.storage.conductor_lease import ConductorLease
from tests.deployments.test_leases import GIVES_UP_S, Run

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


@pytest.fixture(autouse=True)
def _own_logs() -> Iterator[None]:
    """A reload sends the logs of this process elsewhere."""
    loggers = [logging.getLogger(name) for name in ("", "broker", "broker.access")]
    before = [(each, [*each.handlers], each.level, each.propagate) for each in loggers]
    yield
    for each, handlers, level, propagate in before:
        each.handlers, each.propagate = handlers, propagate
        each.setLevel(level)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "broker.env"


@pytest.fixture
async def run(
    own_migrated_dsn: str, tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Run]:
    monkeypatch.setattr(conductor_process, "_PROGRAM", "tests.deployments.listening_conductor")
    monkeypatch.setattr(supervisor, "_LEASE_ROUND_S", 0.05)
    write(file, "")
    environ = {"BROKER_DATABASE_URL": own_migrated_dsn, "BROKER_SETTINGS_FILE": str(file)}
    directory = tmp_path / "data"
    run = Run(own_migrated_dsn, directory, lambda: Settings.load(environ, data_dir=directory))
    yield run
    with suppress(SetupError):
        await run.close()


def write(file: Path, text: str) -> None:
    file.write_text(text)


async def reload(run: Run) -> ReloadRecord:
    """What becomes of a reload that is asked for now."""
    before = read_record(run.held.path)
    run.supervisor._reloads.ask()
    async with asyncio.timeout(GIVES_UP_S):
        while not (record := read_record(run.held.path)).is_over or record.number == before.number:
            assert not run.ended.done(), run.ended.exception()
            await asyncio.sleep(0.01)
    assert record.number == before.number + 1
    return record


async def test_the_parts_are_exchanged_for_some_with_the_settings_of_the_file(run: Run, file: Path) -> None:
    await run.until("ready")
    write(file, "BROKER_LOG_LEVEL=debug\nBROKER_HTTP_PORT=9000\n")
    record = await reload(run)
    assert record.state is ReloadState.DONE
    assert "applied: BROKER_LOG_LEVEL" in record.lines
    assert "BROKER_HTTP_PORT: takes effect at the next start of `broker up`" in record.lines
    assert record.lines[-1] == "all parts are exchanged"
    assert await run.until("roll") == ["debug"]
    assert (run.supervisor.settings.log_level, run.supervisor.settings.http_port) == ("debug", 8000)
    # Without a change the parts are exchanged all the same, for new code.
    again = await reload(run)
    assert "applied: BROKER_LOG_LEVEL" not in again.lines
    assert await run.until("roll", times=2) == ["debug", "debug"]


async def test_nonsense_changes_nothing_and_is_named(run: Run, file: Path) -> None:
    await run.until("ready")
    write(file, "BROKER_LOG_LEVEL=debug\nBROKER_WS_LAG_S=soon\n")
    record = await reload(run)
    assert record.state is ReloadState.REFUSED
    assert record.lines == ("nothing is changed: BROKER_WS_LAG_S=soon: must be a number, 0.1 to 86400",)
    assert run.supervisor.settings.log_level == "info"
    assert not [each for each in run.reports if each[0] == "roll"]
    write(file, "BROKER_LOG_LEVEL=debug\n")
    assert (await reload(run)).state is ReloadState.DONE


async def test_an_exchange_that_fails_leaves_the_former_settings(run: Run, file: Path) -> None:
    await run.until("ready")
    write(file, "BROKER_LOG_LEVEL=error\n")
    record = await reload(run)
    assert (record.state, record.lines[-1]) == (ReloadState.FAILED, "the exchange failed: no gateway starts")
    assert run.supervisor.settings.log_level == "info"


async def test_parts_that_start_again_meanwhile_have_the_new_settings(run: Run, file: Path) -> None:
    await run.until("ready")
    began = len(await run.until("began"))
    write(file, "BROKER_LOG_LEVEL=warning\n")
    record = await reload(run)
    assert (record.state, "Ray has ended" in record.lines[-1]) == (ReloadState.FAILED, True)
    await run.until("began", times=began + 1)
    assert run.supervisor.settings.log_level == "warning"


async def test_nothing_is_exchanged_before_all_is_up(run: Run, own_migrated_dsn: str) -> None:
    await run.until("ready")
    await run.close()
    lease = await ConductorLease.open(own_migrated_dsn, "other")
    assert await lease.take()
    spare = Run(own_migrated_dsn, run.held.path)
    try:
        await spare.until("waiting")
        record = await reload(spare)
        assert (record.state, "the parts are not up" in record.lines[-1]) == (ReloadState.REFUSED, True)
    finally:
        with suppress(SetupError):
            await spare.close()
        await lease.close()


async def test_a_record_of_an_earlier_run_is_put_away(run: Run) -> None:
    await run.until("ready")
    assert (await reload(run)).number == 1
    await run.close()
    again = Run(run.supervisor.settings.database_url, run.held.path)
    try:
        await again.until("ready")
        assert read_record(again.held.path).state is ReloadState.NONE
    finally:
        with suppress(SetupError):
            await again.close()
