"""What a replica of Ray Serve is, whatever it serves: an ASGI application that opens when the replica starts.

It travels to the replica as it is, so it holds nothing but its configuration until then. The conductor makes
it and no more, so what it opens is imported when it opens.
"""

import asyncio
import gc
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from ray import serve

from broker import heap, timers
from broker.concurrency.tasks import cancel_and_wait, keep_running
from broker.deployments.ray_internals.direct_requests import (
    API_PATHS,
    serve_directly,
    without_request_id,
)
from broker.deployments.ray_internals.serve_control import is_behind_haproxy
from broker.logs import configure_logs
from broker.rest.asgi import Receive, Send
from broker.settings import Settings

if TYPE_CHECKING:
    from broker.rest.door import Door

_COLLECT_AFTER = 20_000  # objects more than there were; Python's 700 are ten requests


class Replica(ABC):
    """The ASGI application of a replica.

    Attributes:
        kind: what the replica's logs call it.
        late_s: by how much its timers may be late (`timers.allow_late`).
        prefix: of the paths that the ingress asks the replica for directly.
    """

    kind: str
    late_s: float
    prefix = API_PATHS

    def __init__(self, settings: Settings, dsn: str) -> None:
        self._settings = settings
        self._dsn = dsn
        self._stack = AsyncExitStack()
        self._app: Door | None = None

    @abstractmethod
    async def open(self, stack: AsyncExitStack) -> "Door":
        """What serves the requests. What it needs is closed by `stack` in the end."""

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one ASGI scope that Serve hands on: what `ray_internals.direct_requests` does not take."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        assert self._app is not None, "a server runs the lifespan before it sends requests"
        await self._app(scope, receive, without_request_id(send))

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self._open()
        except Exception as error:
            await self._stack.aclose()
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._stack.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    async def _open(self) -> None:
        from broker.deployments.node_address import node_address
        from broker.deployments.ray_internals.departures import (
            Departure,
            configuration_place,
            ingress_directory,
        )
        from broker.deployments.ray_internals.replica_listeners import (
            close_grpc,
            listen_at_file,
            listen_on_node,
        )

        configure_logs(self._settings, self.kind)
        close_grpc()
        if self._settings.ray_address and is_behind_haproxy():
            listen_on_node(node_address())
        listen_at_file(ingress_directory())
        departure = Departure(configuration_place(), is_joined=bool(self._settings.ray_address))
        departure.watch()
        timers.allow_late(self.late_s)
        self._app = await self.open(self._stack)
        self._stack.callback(self._app.close)
        self._stack.push_async_callback(cancel_and_wait, keep_running("heap", heap.keep_trimmed))
        # Serve starts the replica's server after this.
        serve_directly(self._app, departure, self.prefix, self._app.answer_at_once)
        # Serve has taken what was loaded out of the collector's sight; what requests leave is seldom garbage.
        gc.set_threshold(_COLLECT_AFTER)


def bind(name: str, options: Mapping[str, Any], replica: Replica) -> serve.Application:
    """A deployment of replicas, ready for `serve.run`."""

    @serve.deployment(name=name, **options)
    @serve.ingress(replica)
    class Deployment:
        """Requests go to the ASGI application; Serve asks the class only whether it lives."""

        async def check_health(self) -> None:
            """Answer; a loop that hangs does not."""
            await asyncio.sleep(0)

    application: serve.Application = Deployment.bind()  # type: ignore[attr-defined]  # hidden by the decorators
    return application
