"""The first start (`broker.deployments.first_start`) in a process of its own.

`broker up` would hold what it takes, 20 MB, for as long as it runs.
"""

import asyncio
import sys
from asyncio.subprocess import PIPE
from dataclasses import dataclass

import orjson

from broker.settings import Settings, child_environment
from broker.setup_error import SetupError

_PROGRAM = "broker.deployments.first_start"


@dataclass(frozen=True, slots=True)
class Prepared:
    """What was found and done, for people: the server's version, migrations applied, the account, and risks.

    The risks are those of losing what was committed.
    """

    version: str
    applied: list[str]
    account: str
    risks: list[str]


async def prepare_apart(settings: Settings, dsn: str) -> Prepared:
    """Have a database prepared. Cancelling ends the process, which can be done again at any time.

    Raises:
        SetupError: it cannot be; one line that says why.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        _PROGRAM,
        stdin=PIPE,
        stdout=PIPE,
        start_new_session=True,  # a Ctrl-C in the terminal is for `broker up` alone
        env=child_environment(settings.to_environment()),
    )
    try:
        secrets = {"dsn": dsn, "admin_password": settings.admin_password}
        told, _ = await process.communicate(orjson.dumps(secrets))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise SetupError("the database could not be prepared; the messages above say why")
    answer = orjson.loads(told)
    if "failed" in answer:
        raise SetupError(answer["failed"])
    return Prepared(**answer)
