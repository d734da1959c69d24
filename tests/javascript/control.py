"""What the tests in JavaScript may ask of the instance that they run against."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

from broker.demo.matomo import StandIn
from broker.settings import child_environment
from tests.adversity.faults import TITLES, kill
from tests.deployments.instance import Instance


@contextmanager
def serve(instance: Instance, matomo: StandIn | None = None) -> Iterator[str]:
    """The URL of a server that does something to `instance` or `matomo` at each POST: the path says what."""

    def stop() -> str:
        return f"{instance.stop():.1f}"

    def start() -> str:
        instance.start()
        return "ready"

    def kill_gateway() -> str:
        return str(kill(instance, TITLES["gateway"]))

    def kill_everything() -> str:
        instance.kill_everything()
        return "killed"

    def metrics() -> str:
        return httpx.get(f"{instance.ops_url}/metrics", timeout=20).raise_for_status().text

    def lose_report() -> str:
        assert matomo is not None
        lost = [site.reports.pop()["name"] for site in matomo.sites.values() if site.reports]
        return ", ".join(lost)

    def drop_issued() -> str:
        words = ["account", "visitors", "demo", "--drop-issued", "--data-dir", str(instance.data_dir)]
        command = [sys.executable, "-c", "from broker.cli.main import main; main()", *words]
        done = subprocess.run(command, env=child_environment({}), capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    doing = {
        "drop-issued": drop_issued,
        "stop": stop,
        "start": start,
        "kill": kill_everything,
        "kill-gateway": kill_gateway,
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


def _handler(doing: Mapping[str, Callable[[], str]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                status, text = 200, doing[self.path.strip("/")]()
            except Exception as error:  # the test that asked is told
                status, text = 500, repr(error)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    return Handler
