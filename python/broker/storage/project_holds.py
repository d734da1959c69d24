"""Programs come into projects, and a project that is there stays until they are in.

A program may name a project that is not made yet, so there is no foreign key. What is refused is a project
that goes while a program comes into it: the program would be left behind in a project that nobody has.
"""

import asyncpg

# Nobody waits for a deletion: it holds the row to its end, and then the project is gone.
_HOLD = """
WITH held AS (SELECT FROM projects WHERE account = $1 AND id = $2 FOR KEY SHARE SKIP LOCKED)
SELECT EXISTS (SELECT FROM projects WHERE account = $1 AND id = $2) AS is_there,
    EXISTS (SELECT FROM held) AS is_held
"""


async def hold_project(
    connection: asyncpg.Connection, account: str, project_id: str, *, was_there: bool
) -> bool:
    """Keep a project from being deleted before the end of the caller's transaction.

    Args:
        was_there: whether there was such a project when the caller was asked for what it does.

    Returns:
        False when the project is being deleted, or has been since. True also for one that is not made yet.
    """
    is_there, is_held = await connection.fetchrow(_HOLD, account, project_id)
    return bool(is_held or not (is_there or was_there))
