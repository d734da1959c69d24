"""The users of the demonstration, with public passwords, and its program."""

import contextlib
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import timedelta

from broker.auth.administration import Administration
from broker.client import AsyncClient, Conflict, NotFound, Program
from broker.clock import Clock, to_datetime
from broker.domain.users import Role
from broker.errors import Conflict as Taken

PROGRAM_ID = "final"
PROJECT_ID = "football"
_LENGTH = timedelta(hours=6)
_LOOK = {
    "overlay": {
        "teams": {
            "NOR": {"name": "Northport", "color": "#2f7bff"},
            "SOU": {"name": "Southvale", "color": "#ffb000"},
        }
    }
}


@dataclass(frozen=True, slots=True)
class Login:
    """A user of the demonstration."""

    username: str
    password: str
    role: Role


LOGINS = (
    Login("admin", "demo-admin", Role.ADMIN),
    Login("producer", "demo-producer", Role.PRODUCER),
    Login("user", "demo-user-1", Role.USER),
    Login("client", "demo-client", Role.CLIENT),
)


async def ensure_cast(administration: Administration, account: str) -> None:
    """Make the account and its users; those of an earlier run get their known passwords again."""
    await _or_taken(administration.add_account(account))
    for login in LOGINS:
        made = administration.add_user(account, login.username, login.password, login.role)
        if not await _or_taken(made):
            await administration.set_password(account, login.username, login.password)


async def ensure_members(client: AsyncClient) -> None:
    """Make the project and let the producer and the user into it; needs an admin."""
    with contextlib.suppress(Conflict):  # it is there from an earlier run
        await client.projects.create("Football", project_id=PROJECT_ID)
    names = {login.username for login in LOGINS if login.role in (Role.PRODUCER, Role.USER)}
    for user in await client.users.list():
        if user.username in names and PROJECT_ID not in user.project_ids:
            await client.users.update(user.id, project_ids=[*user.project_ids, PROJECT_ID])


async def ensure_look(client: AsyncClient) -> None:
    """Publish how the overlay looks, unless an earlier run did; needs an admin."""
    try:
        await client.revisions.get_published(PROJECT_ID)
    except NotFound:
        await client.revisions.create(PROJECT_ID, _LOOK, title="The final", status="published")


async def ensure_program(client: AsyncClient, clock: Clock) -> Program:
    """Make the program, live from now on, in place of that of an earlier run."""
    with contextlib.suppress(NotFound):
        await client.programs.delete(PROGRAM_ID)
    start = to_datetime(clock.now_ms())
    return await client.programs.create(
        PROGRAM_ID,
        "The Final",
        scheduled_start_time=start,
        scheduled_end_time=start + _LENGTH,
        project_id=PROJECT_ID,
    )


async def _or_taken(work: Awaitable[object]) -> bool:
    """Whether it was made; false when it was there already."""
    try:
        await work
    except Taken:
        return False
    return True
