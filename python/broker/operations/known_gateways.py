"""The gateways for `/connect`: cached in the process, and chosen to balance load.

They are read at most once a second, by whoever asks first; everybody else is answered from memory, also while
that is under way and while the database is unavailable. How one is chosen, and what was sent to each since,
is in native code (`native/core/src/directory/`), by which a gateway answers `/connect` itself.
"""

import asyncio
from collections.abc import Callable, Sequence

from broker._native import Gateways as Directory
from broker.clock import Clock
from broker.concurrency.single_flight import SingleFlight
from broker.errors import Unavailable
from broker.settings import Settings
from broker.storage.gateways import GatewayRow, Gateways

ENDPOINT = "/api/v1/ws"

_FRESH_S = 1.0
_KEPT_S = 30.0  # without the database; gateways live for longer, but what starts and ends is not seen
_PATIENCE_S = 1.0  # for a database that stands still; who waits is a viewer who sees nothing
_READ = "gateways"


class KnownGateways:
    """A cached list of the gateways that are alive. Belongs to one event loop.

    `directory` has them as of the last `refresh`, for whoever sends clients on without this object.
    """

    def __init__(self, gateways: Gateways, clock: Clock, settings: Settings) -> None:
        self.directory = Directory(
            url=url_template(settings),
            public_host=settings.public_host,
            default_account=settings.default_account,
        )
        self._gateways = gateways
        self._clock = clock
        self._read_s: float | None = None
        self._tried_s: float | None = None
        self._reading: SingleFlight[str, None] = SingleFlight()
        self._heard: list[Callable[[Sequence[GatewayRow]], None]] = []

    def on_read(self, heard: Callable[[Sequence[GatewayRow]], None]) -> None:
        """Have `heard` called with what the database says, whenever it was read."""
        self._heard.append(heard)

    async def advise(self, account: str, program_id: str | None = None) -> tuple[bytes, str | None]:
        """Send a client of `account` to a gateway.

        Returns:
            The JSON of a `Connect`, and the URL of the program's event stream there; None without a gateway.
        """
        await self.refresh()
        return self.directory.advise(account, program_id)

    async def refresh(self) -> None:
        """Make the directory as fresh as it can be; it is empty when gateways cannot be known."""
        now_s = self._clock.monotonic_s()
        if _READ not in self._reading and (self._tried_s is None or now_s - self._tried_s >= _FRESH_S):
            self._tried_s = now_s
            self._reading.begin(_READ, self._read)
        if _READ in self._reading and (self._read_s is None or now_s - self._read_s >= _KEPT_S):
            await asyncio.wait({self._reading.begin(_READ, self._read)}, timeout=_PATIENCE_S)
        if self._read_s is not None and self._clock.monotonic_s() - self._read_s >= _KEPT_S:
            self._read_s = None
            self.directory.set([])

    @property
    def is_reading(self) -> bool:
        """Whether the database is being asked."""
        return _READ in self._reading

    async def close(self) -> None:
        """End the read that is under way."""
        await self._reading.close()

    async def _read(self) -> None:
        try:
            rows = await self._gateways.list_alive()
        except Unavailable:
            return  # the gateways go on without the database, and so does whoever looks for one
        self.directory.set([(row.id, row.url, row.connections, row.draining) for row in rows])
        self._read_s = self._clock.monotonic_s()
        for heard in self._heard:
            heard(rows)


def url_template(settings: Settings) -> str:
    """The endpoint's URL as clients reach it; `{account}` in it is where the account's label goes."""
    if settings.public_ws_url:
        return settings.public_ws_url
    scheme = "wss" if settings.ws_tls_certificate else "ws"
    return f"{scheme}://{{account}}{settings.public_host}:{settings.ws_port}{ENDPOINT}"
