"""The interface through which operations change programs: the client of the owners."""

from typing import Protocol, TypeVar

from broker.owners.commands import ProgramCommand

R = TypeVar("R")


class Owners(Protocol):
    """The port to the owners. It has one implementation; it is there to keep Ray out of the operations."""

    async def submit(self, command: ProgramCommand[R]) -> R:
        """Have a command done, and return its reply once the effect is durable in PostgreSQL.

        Commands on one program take effect in the order in which the coroutines were first stepped within one
        process: a command is in its owner's queue when the first await begins. One that comes with a key
        leaves its result under it, in one transaction.

        Raises:
            NotFound: no such program, or no such event in it.
            InsufficientScope: the command's caller may not do it to the program as it is at the moment of the
                change; `NotFound` where it may not even know of it.
            Repeated: the key has a result, which this carries; nothing was done.
            Conflict: the key was used for another request.
            Unavailable: the owner or the database cannot be reached in time; nothing was done.
            OutcomeUnknown: it was done wholly or not at all.
        """

    async def programs_changed(self, account: str) -> None:
        """Have the owner of the `programs` channel look for news; loses nothing when it fails.

        `submit` does so by itself.
        """

    async def value_stored(self, account: str, project_id: str) -> None:
        """Have the owner of the project's `storage` channel look for news; as `programs_changed` does."""

    async def votes_counted(self, account: str, program_id: str) -> None:
        """Have the owner of the program's `responses` channel look for news; as `programs_changed` does."""
