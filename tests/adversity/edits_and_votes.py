"""Editors and voters beside a show, so that a soak judges imports, deletions, answers and impressions too."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.adversity.edits import EditedProgram
from tests.adversity.votes import VotingShow
from tests.deployments.instance import PASSWORD, Instance

_EDITORS = 2
_AFTER = 10  # changes and batches of each once the show is over


@asynccontextmanager
async def edits_and_votes(instance: Instance) -> AsyncIterator[list[str]]:
    """Edit and vote while the body runs; the findings are in the list when it is left.

    Raises:
        ExceptionGroup: an editor or a voter was refused what must be taken.
    """
    name = secrets.token_hex(4)
    editors = [
        EditedProgram(instance.url, f"edit-{name}-{seed}", "admin", PASSWORD, seed)
        for seed in range(_EDITORS)
    ]
    socket_url = f"ws://localhost:{instance.ws_port}/api/v1/ws"
    token = await asyncio.to_thread(instance.token)
    votes = VotingShow(instance.url, f"vote-{name}", token, ws_url=socket_url)
    findings: list[str] = []
    disturb = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for editor in editors:
            group.create_task(editor.run(disturb, after=_AFTER))
        group.create_task(votes.run(disturb, doors=2, after=_AFTER, sockets=2))
        yield findings
        disturb.set()
    for editor in editors:
        findings += [f"{editor.program_id}: {finding}" for finding in editor.judge()]
    findings += [f"{votes.program_id}: {finding}" for finding in votes.judge()]
