"""Editors and voters beside a show, so that a soak judges imports, deletions, answers and impressions too.

Voters are of every kind that a poll can require, over HTTP and WebSocket.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.adversity.edits import EditedProgram
from tests.adversity.votes import open_shows
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
    token = await asyncio.to_thread(instance.token)
    shows = await asyncio.to_thread(open_shows, instance, token)
    findings: list[str] = []
    disturb = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for editor in editors:
            group.create_task(editor.run(disturb, after=_AFTER))
        for show in shows:
            group.create_task(show.run(disturb, doors=1, after=_AFTER, sockets=1))
        yield findings
        disturb.set()
    for editor in editors:
        findings += [f"{editor.program_id}: {finding}" for finding in editor.judge()]
    findings += [f"{show.program_id}: {finding}" for show in shows for finding in show.judge()]
