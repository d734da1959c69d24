"""A replica that is about to end keeps serving until no ingress sends it requests.

Ray Serve tells HAProxy and the replica at the same time. A second later the replica's server closes its
listener and its kept connections, and by then HAProxy may not have been reloaded: what it sends that moment
is lost, and it cannot know whether it was read. So the server goes on until the configuration of this node's
ingress does not name the replica, and a little longer. Replies say `Connection: close` from the beginning,
which ends connections in order. The process of HAProxy that is replaced hears before
(`broker.deployments.ingress_start`) which replicas it has lost, and closes its kept connections to them; one
that is older still uses no connection twice (`broker.deployments.ingress`).

Until then it passes HAProxy's health checks. With Serve's 503, a process of HAProxy that is about to be
replaced would leave out its last replica, and nobody would take requests until the next process has started.

On a cluster a replica sees the configuration of its own node only, so there it waits for the others' a while.

Names used: `start_asgi_http_server` of `ray.serve._private.replica`, which returns a task and a
`uvicorn.Server`; of that `shutdown`, `server_state.connections`, and `cycle` of a connection with
`response_started` and `keep_alive`; `_dataplane_health_check`, `_shutting_down` and `_healthy` of `Replica`
there; the words `server SERVE_REPLICA` of HAProxy's configuration, which `haproxy_input` reads.
Probe: `Departure.watch`, before a replica is initialised.
Fall-back: none; a replica that would lose requests at its end does not start.
Gain: exchanging replicas, as each update and each change of their number does, loses no request.
"""

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from broker.deployments.ray_internals.haproxy import CONFIGURATION, socket_file

_LOOK_S = 0.1
_LIMIT_S = 6.0
"""A configuration that names a replica for longer is wrong."""
_OTHERS_S = 3.0  # for the ingresses of other nodes
_AFTER_S = 1.5  # a body may be on its way, in a process of HAProxy that is being replaced
_START = "start_asgi_http_server"
_CHECK = "_dataplane_health_check"


class Departure:
    """Whether this replica is to end, and what it waits for then. Belongs to its event loop."""

    def __init__(self, place: Path | None, *, is_joined: bool) -> None:
        """Remember where to look.

        Args:
            place: the configuration of the ingress; nodes of one machine have theirs in directories beside
                it. `None` where there is none to wait for.
            is_joined: whether there are other nodes.
        """
        self.has_begun = False
        self._place = place
        self._is_joined = is_joined

    def watch(self) -> None:
        """Have the HTTP servers of replicas that this process starts end so; before one is initialised.

        Raises:
            RuntimeError: Serve starts them in another way.
        """
        if self._place is None:
            return
        from ray.serve._private import replica  # a replica has it; a process without Ray must not load it

        start: Any = getattr(replica, _START, None)
        if not callable(start):
            raise RuntimeError(f"Ray Serve no longer starts the HTTP server of replicas by {_START}")
        pass_checks(getattr(replica, "Replica", None))

        async def start_watched(app: Any, options: Any, **others: Any) -> Any:
            task, server = await start(app, options, **others)
            self.delay(server)  # its task begins when this has come back
            return task, server

        setattr(replica, _START, start_watched)

    def delay(self, server: Any) -> None:
        """Let a server of uvicorn begin its shutdown when no ingress needs it."""
        shutdown = server.shutdown

        async def shutdown_later(sockets: Any = None) -> None:
            self.has_begun = True
            for connection in list(server.server_state.connections):
                _end_after_reply(connection)
            with suppress(TimeoutError):
                async with asyncio.timeout(_LIMIT_S):
                    await self._wait(server.config.port)
            await shutdown(sockets=sockets)

        server.shutdown = shutdown_later

    async def _wait(self, port: int) -> None:
        if self._is_joined:
            await asyncio.sleep(_OTHERS_S)
        ours = (f":{port} ", f"/{socket_file(port)} ")
        while not (texts := self._read()) or any(name in text for text in texts for name in ours):  # noqa: ASYNC110 - a file
            await asyncio.sleep(_LOOK_S)
        if any(_REPLICA in text for text in texts):  # else the product stops, and nobody else would answer
            await asyncio.sleep(_AFTER_S)

    def _read(self) -> list[str]:
        """The configurations of this machine that are ours; Ray's own are there while one is exchanged."""
        if self._place is None:
            return []
        texts = []
        for path in (self._place, *self._place.parent.glob(f"*/{self._place.name}")):
            with suppress(OSError, UnicodeDecodeError):
                texts.append(path.read_text())
        return [] if any(_OURS not in text for text in texts) else texts


def configuration_place() -> Path | None:
    """Where Ray writes the configuration of the ingress; `None` where HTTP goes through its own proxy."""
    from broker.deployments.ray_internals.serve_control import is_behind_haproxy

    place = os.environ.get(CONFIGURATION, "")
    return Path(place) if place and is_behind_haproxy() else None


def ingress_directory() -> Path | None:
    """Where the ingress of this node has its files; `None` where HTTP goes through Ray's own proxy."""
    place = configuration_place()
    if place is None:
        return None
    import ray

    return place.parent / ray.get_runtime_context().get_node_id()


def pass_checks(kind: Any) -> None:
    """Have replicas that are to end pass HAProxy's health checks unless they are unhealthy.

    Args:
        kind: Serve's class of replicas; None where it has none of that name.

    Raises:
        RuntimeError: Serve answers health checks in another way.
    """
    check: Any = getattr(kind, _CHECK, None)
    if not asyncio.iscoroutinefunction(check):
        raise RuntimeError(f"Ray Serve no longer answers HAProxy's health checks by {_CHECK}")

    async def check_until_closed(self: Any) -> tuple[bool, str]:
        is_healthy, message = await check(self)
        return is_healthy or (self._shutting_down and self._healthy), message

    setattr(kind, _CHECK, check_until_closed)


_OURS = "frontend public from ours"
_REPLICA = "server SERVE_REPLICA"


def _end_after_reply(connection: Any) -> None:
    """Let a reply that has not begun say that its connection ends. What has begun may not end without."""
    cycle = getattr(connection, "cycle", None)
    if cycle is not None and not cycle.response_started:
        cycle.keep_alive = False
