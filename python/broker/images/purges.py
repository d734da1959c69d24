"""The cached images that have been purged.

Each process reads the purges every few seconds, and when it is told of one (`purge_notices`). It looks at
this book before it uses anything that is cached: what was begun when the book knew less than a purge of the
same source is as if it were not there. Nothing has to be sent to anybody, and a node that was away when a
image was purged does not show it either.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from broker.errors import Unavailable
from broker.storage.image_purges import ALL, Purge

READ_S = 2.0
"""Between two reads."""
_FILE = "purged"

_log = logging.getLogger(__name__)


class Origin(NamedTuple):
    """Of what an entry of a cache is, and how much the book knew when it was begun."""

    account: str = ""
    source: str = ""
    number: int = -1


def source_of(url: str) -> str:
    """The digest by which purges and caches name a source."""
    return hashlib.sha256(url.encode()).hexdigest()


class StoredPurges(Protocol):
    """Where purges are read."""

    async def list_after(self, number: int) -> tuple[int, list[Purge]]:
        """The purges after one of that number, oldest first."""
        ...


class PurgeBook:
    """The purges as of some seconds ago; while the database is unavailable those that are known hold."""

    def __init__(self, stored: StoredPurges) -> None:
        self._stored = stored
        self._number = -1
        self._last = -1
        self._reading = asyncio.Lock()
        self._all: dict[str, int] = {}
        self._sources: dict[str, dict[str, int]] = {}

    @property
    def number(self) -> int:
        """The highest that was read.

        Raises:
            Unavailable: none was read yet, so nothing may be shown.
        """
        self.require_read()
        return self._number

    @property
    def last(self) -> int:
        """The number of the last purge that is known; -1 without one."""
        return self._last

    def require_read(self) -> None:
        """Raises Unavailable while none was read, when nothing may be shown."""
        if self._number < 0:
            raise Unavailable("the list of image purges has not been read yet", retry_after_s=1)

    def origin(self, account: str, url: str) -> Origin:
        """Of what is begun now. Raises Unavailable."""
        return Origin(account, source_of(url), self.number)

    def is_gone(self, origin: Origin) -> bool:
        """Whether there was a purge since."""
        if origin.number < self._all.get(origin.account, -1):
            return True
        sources = self._sources.get(origin.account)
        return sources is not None and origin.number < sources.get(origin.source, -1)

    async def read(self) -> None:
        """Read what is new. Raises Unavailable."""
        async with self._reading:
            await self._read()

    async def catch_up(self, number: int) -> None:
        """Know the purges up to a stored one; reads only if they are not known. Raises Unavailable."""
        if self._number >= number:
            return
        async with self._reading:
            if self._number < number:  # nobody has read it meanwhile
                await self._read()

    async def _read(self) -> None:
        head, purges = await self._stored.list_after(self._number)
        for purge in sorted(purges, key=lambda each: each.number):
            if purge.source == ALL:
                self._all[purge.account] = purge.number
                self._sources.pop(purge.account, None)  # all of them are older
            else:
                self._sources.setdefault(purge.account, {})[purge.source] = purge.number
            self._last = max(self._last, purge.number)
        self._number = max(self._number, head)


class PurgeFollower:
    """Keeps a book up to date, and gives up the room of what is gone. `run` in a task.

    Args:
        directory: of the node's caches; says up to where they were cleared, so that not every start does.
        forget: gives up the memory of this process.
        clear: removes from the node's disk; returns how many entries. Called in a thread.
    """

    def __init__(
        self, book: PurgeBook, directory: Path, forget: Callable[[], None], clear: Callable[[], int]
    ) -> None:
        self._book = book
        self._file = directory / _FILE
        self._forget = forget
        self._clear = clear

    async def run(self) -> None:
        """Go on until cancelled."""
        cleared = await asyncio.to_thread(self._read_cleared)
        while True:
            try:
                await self._book.read()
            except Unavailable as error:
                _log.info("image_purges_wait", extra={"cause": error.log_text})
            # Requests may have read what is new (`catch_up`), so the book is asked and not this reading.
            if cleared < self._book.last:
                cleared = self._book.number
                self._forget()
                removed = await asyncio.to_thread(self._remove, cleared)
                _log.info("images_purged", extra={"removed": removed})
            await asyncio.sleep(READ_S)

    def _read_cleared(self) -> int:
        with suppress(OSError, ValueError):
            return int(self._file.read_text())
        return -1

    def _remove(self, number: int) -> int:
        removed = self._clear()
        with suppress(OSError):
            self._file.write_text(str(number))
        return removed
