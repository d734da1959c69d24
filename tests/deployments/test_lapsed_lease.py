"""What a conductor does not do once its lease has lapsed: with the product on Ray, as `broker up` starts it.

`tests/deployments/test_leased_tasks.py` has the rules, `test_leases.py` how the lease is kept.
"""

import asyncio
import signal
from pathlib import Path

import psutil
import pytest

from tests.adversity.faults import COUNTER, TITLES, find
from tests.deployments.instance import Instance
from tests.owners.support import holding

pytestmark = [pytest.mark.anyio, pytest.mark.cluster, pytest.mark.timeout(600)]

_NOBODY_RENEWS = "LOCK TABLE conductor_lease IN SHARE MODE"  # and everybody reads
_WAIT_S = 60.0
_PATIENCE_S = 6.0  # a conductor exchanges a slot that hangs after one second, and begins an update at once
_ACTORS = (TITLES["owner"], TITLES["gateway"], COUNTER)


async def test_conductor_exchanges_nothing_until_its_lease_is_renewed(
    own_migrated_dsn: str, tmp_path: Path
) -> None:
    instance = Instance(tmp_path / "data", database_url=own_migrated_dsn)
    try:
        await asyncio.to_thread(instance.start)
        async with holding(own_migrated_dsn, _NOBODY_RENEWS):
            await until_logged(instance, "conductor_lease_lapsed")
            before = actors(instance)
            hung, *_ = find(instance, TITLES["owner"])
            hung.send_signal(signal.SIGSTOP)
            instance.process.send_signal(signal.SIGHUP)  # an update, too
            await asyncio.sleep(_PATIENCE_S)
            assert actors(instance) == before
            assert hung.status() == psutil.STATUS_STOPPED
            assert not has_logged(instance, "slot_exchanged")
        await until_logged(instance, "slot_exchanged")
        async with asyncio.timeout(_WAIT_S):
            while hung.is_running():  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.05)
        await asyncio.to_thread(instance.stop)
    finally:
        instance.end()


def actors(instance: Instance) -> list[int]:
    """The processes of everything that a conductor exchanges."""
    return [process.pid for title in _ACTORS for process in find(instance, title)]


def has_logged(instance: Instance, event: str) -> bool:
    files = (instance.data_dir / "log").glob("*.log")
    return any(f'"{event}"' in path.read_text(errors="replace") for path in files)


async def until_logged(instance: Instance, event: str) -> None:
    async with asyncio.timeout(_WAIT_S):
        while not has_logged(instance, event):  # noqa: ASYNC110 - the event is in a file
            await asyncio.sleep(0.1)
