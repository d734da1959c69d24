"""The channel `storage:<project>`: pushes each stored value, in the order of storing.

Reading a value by its id is open to everybody, and so is following.
"""

from collections.abc import Iterable

import orjson

from broker.clock import Clock
from broker.owners.log import LogLimits, Step
from broker.owners.protocol import STORAGE_CHANNEL, channel_topic
from broker.owners.tail import TailedChannel
from broker.storage.stored_values import StoredValueRow, StoredValues

_PAGE = 64  # values a look: 16 MiB of the largest ones


class StorageChannel(TailedChannel):
    """The topic of one project's stored values."""

    def __init__(
        self,
        account: str,
        project_id: str,
        values: StoredValues,
        clock: Clock,
        limits: LogLimits,
    ) -> None:
        self._channel = f"{STORAGE_CHANNEL}{project_id}"
        name = channel_topic(account, self._channel)
        super().__init__(name, clock, limits, public=True, page=_PAGE)
        self._account = account
        self._project_id = project_id
        self._values = values

    async def _recent(self, limit: int) -> list[Step]:
        return self._steps(await self._values.recent(self._account, self._project_id, limit))

    async def _read(self, after: int, limit: int) -> list[Step]:
        return self._steps(await self._values.after(self._account, self._project_id, after, limit))

    def _steps(self, rows: Iterable[StoredValueRow]) -> list[Step]:
        return [self._notice(row.number, "stored", self._params(row.value)) for row in rows]

    def _params(self, value: bytes) -> bytes:
        fields = {"channel": self._channel, "projectId": self._project_id, "value": orjson.Fragment(value)}
        return orjson.dumps(fields)
