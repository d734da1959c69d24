"""The calls on the broker itself, reached as `client.status`."""

from broker.client.engine import Call, Engine, Group
from broker.client.models import Health, ServerTime, Version
from broker.client.retry import Safety
from broker.client.wire import Model
from broker.clock import Clock


class Status(Group):
    """The broker: what it runs, and its clock."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        super().__init__(engine)
        self._clock = clock

    async def get_version(self) -> Version:
        """What the broker runs."""
        return await self._get("/version", Version)

    async def get_health(self) -> Health:
        """Whether each part of the broker responds; for admins. A part that does not is no error."""
        return await self._get("/health", Health)

    async def get_server_time(self) -> ServerTime:
        """The broker's clock beside the caller's."""
        body = {"requestTime": self._clock.now_ms()}
        call = Call("POST", "/servertime", ServerTime, body=body, own_safety=Safety.REPEATABLE)
        return await self._engine.send(call)

    async def ping(self) -> int:
        """Tell the broker that the caller is still there; returns its time in milliseconds."""
        call = Call("POST", "/ping", _Pong, body={}, own_safety=Safety.REPEATABLE)
        return (await self._engine.send(call)).current_time


class _Pong(Model, frozen=True, rename=None):
    current_time: int
