"""What the tests in JavaScript may ask of the instance that they run against."""

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

import asyncpg
import httpx
import psutil

from broker.demo.matomo import StandIn
from broker.settings import child_environment
from broker.storage.embedded.server import EmbeddedPostgres
from tests.adversity.faults import TITLES, find, kill
from tests.deployments.instance import Instance

# As the API makes them, but nobody is told: nobody looks at them yet.
_MAKE_PROGRAMS = """
    WITH made AS (
        INSERT INTO programs (account, id, name, project_id, access, created_time, updated_time,
                              scheduled_start, scheduled_end)
        SELECT 'demo', $1 || to_char(n, 'FM00000'), $1 || to_char(n, 'FM00000'), $2, 'public',
               now() + n * interval '1 microsecond', now(),
               CASE WHEN n < $4 THEN now() - interval '1 minute' END,
               CASE WHEN n < $4 THEN now() + interval '1 hour' END
        FROM generate_series(0, $3 - 1) n
        RETURNING uid, id
    )
    INSERT INTO program_heads (program_uid, epoch, epoch_reason) SELECT uid, id, 'created' FROM made
"""


@contextmanager
def serve(instance: Instance, matomo: StandIn | None = None) -> Iterator[str]:
    """The URL of a server that does something to `instance` or `matomo` at each POST.

    The path says what, the query with which arguments.
    """

    def stop() -> str:
        return f"{instance.stop():.1f}"

    def start() -> str:
        instance.start()
        return "ready"

    def kill_gateway() -> str:
        return str(kill(instance, TITLES["gateway"]))

    def update() -> str:
        """A rolling update; done when the gateways and replicas from before have gone."""
        before = [*find(instance, TITLES["gateway"]), *find(instance, TITLES["API replica"])]
        instance.process.send_signal(signal.SIGHUP)
        gone, left = psutil.wait_procs(before, 120)
        assert left == []
        return str(len(gone))

    def kill_everything() -> str:
        instance.kill_everything()
        return "killed"

    def metrics() -> str:
        return httpx.get(f"{instance.ops_url}/metrics", timeout=20).raise_for_status().text

    def lose_report(site: str) -> str:
        """Forget the last report of a site; its name."""
        assert matomo is not None
        return str(matomo.sites[int(site)].reports.pop()["name"])

    def drop_issued() -> str:
        words = ["account", "visitors", "demo", "--drop-issued", "--data-dir", str(instance.data_dir)]
        command = [sys.executable, "-c", "from broker.cli.main import main; main()", *words]
        done = subprocess.run(command, env=child_environment({}), capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def make_programs(prefix: str, project: str, count: str, live: str) -> str:
        """Programs named by the prefix and five digits; the first `live` of them are on air."""

        async def make() -> str:
            connection = await asyncpg.connect(EmbeddedPostgres(instance.data_dir / "postgres").dsn)
            try:
                done = await connection.execute(_MAKE_PROGRAMS, prefix, project, int(count), int(live))
                await connection.execute("ANALYZE programs, program_heads")
            finally:
                await connection.close()
            return str(done)

        return asyncio.run(make())

    doing: dict[str, Callable[..., str]] = {
        "make-programs": make_programs,
        "drop-issued": drop_issued,
        "stop": stop,
        "start": start,
        "kill": kill_everything,
        "kill-gateway": kill_gateway,
        "update": update,
        "metrics": metrics,
        "lose-report": lose_report,
    }
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(doing))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(doing: Mapping[str, Callable[..., str]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = urlsplit(self.path)
            try:
                status, text = 200, doing[asked.path.strip("/")](**dict(parse_qsl(asked.query)))
            except Exception as error:  # the test that asked is told
                status, text = 500, repr(error)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    return Handler
