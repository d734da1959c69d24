"""Imports, deletions and corrections while processes die: each is made once."""

import asyncio
import secrets

import pytest

from tests.adversity.edits import EditedProgram
from tests.adversity.faults import TITLES, kill
from tests.deployments.instance import PASSWORD, Instance

pytestmark = [pytest.mark.anyio, pytest.mark.cluster, pytest.mark.timeout(600)]

_BEFORE_S = 0.5


async def test_every_change_is_made_once_when_processes_die(instance: Instance) -> None:
    programs = [
        EditedProgram(instance.url, f"edit-{secrets.token_hex(4)}", "admin", PASSWORD, seed)
        for seed in range(3)
    ]
    disturb = asyncio.Event()
    editing = [asyncio.create_task(program.run(disturb, after=60)) for program in programs]
    for kind in ("owner", "PostgreSQL", "API replica"):
        await asyncio.sleep(_BEFORE_S)
        assert kill(instance, TITLES[kind])
    disturb.set()
    await asyncio.gather(*editing)
    assert [program.judge() for program in programs] == [[], [], []]
    done = {kind: sum(program.done[kind] for program in programs) for kind in programs[0].done}
    assert min(done.values()) > 0, done
