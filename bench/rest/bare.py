"""The measure of the HTTP door: a deployment that answers a constant and does nothing else.

`python -m bench.rest.bare`, run with the environment of an instance's conductor, joins its Ray and adds the
application to its Serve: behind the same ingress, with the same options as the API, one replica.

`/bare/STATUS/BYTES` is answered with that status and a body of that many bytes, whatever the request.
"""

import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import ray
from ray import serve

from broker.deployments import serve_app
from broker.settings import Settings

PREFIX = "/bare"


class BareApp:
    """The application. `__main__`'s classes travel to the replica as a whole, so it needs no bench there."""

    def __init__(self) -> None:
        self._bodies: dict[str, tuple[int, bytes, list[tuple[bytes, bytes]]]] = {}

    async def __call__(
        self,
        scope: Mapping[str, Any],
        receive: Callable[[], Awaitable[Mapping[str, Any]]],
        send: Callable[[Mapping[str, Any]], Awaitable[None]],
    ) -> None:
        """Serve one ASGI scope."""
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        reply = self._bodies.get(scope["path"])
        if reply is None:
            _, status, size = scope["path"].rsplit("/", 2)
            headers = [(b"content-type", b"application/json"), (b"content-length", size.encode())]
            reply = self._bodies[scope["path"]] = int(status), b"x" * int(size), headers
        await send({"type": "http.response.start", "status": reply[0], "headers": reply[2]})
        await send({"type": "http.response.body", "body": reply[1]})


def main() -> None:
    """Deploy, and end; Serve keeps what it runs."""
    address, ip = find_ray(int(sys.argv[1]))
    ray.init(address, namespace="bench", log_to_driver=False, configure_logging=False, _node_ip_address=ip)
    settings = Settings.load()

    options = serve_app.deployment_options(settings)
    # The API has a spare that takes nothing until the first replica is full; here requests would be shared.
    options["autoscaling_config"] |= {"min_replicas": 1, "max_replicas": 1}

    @serve.deployment(name="Bare", **options)
    @serve.ingress(BareApp())
    class Bare:
        """Requests go to the application."""

    serve.run(Bare.bind(), name="bare", route_prefix=PREFIX, logging_config=None)


def find_ray(pid: int) -> tuple[str, str]:
    """Address and node of the Ray whose raylet is `pid`."""
    command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    address = re.search(r"--gcs-address=(\S+)", command)
    ip = re.search(r"--node_ip_address=(\S+)", command)
    assert address, command
    assert ip, command
    return address[1], ip[1]


if __name__ == "__main__":
    main()
