"""The process that starts the parts on Ray and keeps them running; `broker up` starts and watches it.

It is a process of its own because Ray ends the driver of a cluster whose head has died: `broker up` survives
that and starts another. Ray's own processes are its children and end with it.

It reads lines of JSON from standard input and writes some to standard output:

* in: `{"dsn": …, "term": …}` once, when the database is ready and this instance may conduct on it;
  `{"lease_until_s": …}` with it and whenever its lease was renewed (by `broker.clock.boot_s`; null where it
  needs none), without which nothing is started; `{"do": "roll", "settings": …}`, with the environment that
  the parts are to have; `{"do": "stop"}`. The end of the input means that `broker up` has died: everything
  stops with it, except the parts on a joined cluster.
* out: `{"part": …, "detail": …}` when a part is up; `{"warning": …}`; `{"ready": true}`; `{"lost": …}` when a
  process of Ray's own has ended, so that another conductor must succeed this one, which serves until then;
  `{"updated": …}` when a roll is over, with why it failed or nothing; `{"failed": …}` before it gives up.
"""

import asyncio
import importlib
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from broker import timers
from broker.deployments.processes import end_own_session
from broker.deployments.ray_internals.fork_server import SOCKET, ServerProcess, import_and_fork
from broker.logs import configure_logs
from broker.settings import Settings

if TYPE_CHECKING:
    from broker.deployments.ray_internals.ray_cluster import LocalRay

_log = logging.getLogger(__name__)
SUCCEEDS = "--succeeds"
_PARTS = "broker.deployments.parts"


def main() -> None:
    """Run until told to stop.

    Arguments: the instance's directory for sockets, that for logs, and `--succeeds` where another conductor
    of the instance still serves.
    """
    # Only `broker up` decides; a Ctrl-C in its terminal reaches it alone.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.umask(0o077)
    settings = Settings.load(refuses_unknown=False)  # the supervisor's, which may be of older code
    status = 0
    try:
        scratch, log = map(Path, sys.argv[1:3])
        server = None
        if not settings.ray_address:
            timers.deny_timer_descriptors()  # before any thread is started
            # Before logs are configured: workers must not hold this process's.
            server = import_and_fork(scratch / SOCKET)
        configure_logs(settings, "conductor")
        # The parts take a while to import, which Ray's processes need to come up.
        preload = threading.Thread(target=importlib.import_module, args=(_PARTS,), daemon=True)
        preload.start()
        local = None if server is None else _start_ray(scratch, log, server)
        preload.join()
        parts = importlib.import_module(_PARTS)
        # Not `asyncio.run`, which waits for threads: one that asks a GCS that is dead does not end.
        loop = asyncio.new_event_loop()
        loop.run_until_complete(parts.Parts(settings, local, succeeds=SUCCEEDS in sys.argv).run())
    except Exception as error:
        _log.exception("conductor_failed")
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[-1] if lines else type(error).__name__
        sys.stdout.buffer.write(orjson.dumps({"failed": reason}) + b"\n")
        sys.stdout.buffer.flush()
        status = 1
    # What is worth an orderly end has had it. Ray's own end takes eight seconds, and some of its processes
    # notice only after a minute that they are alone.
    end_own_session()
    os._exit(status)


def _start_ray(scratch: Path, log: Path, server: ServerProcess) -> "LocalRay":
    # Here, since it imports Ray, which the fork server must have done before.
    from broker.deployments.ray_internals.ray_cluster import start_local

    return start_local(scratch, log, server)


if __name__ == "__main__":
    main()
