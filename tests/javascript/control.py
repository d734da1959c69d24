"""What the tests in JavaScript may ask of the instance that they run against."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.adversity.faults import TITLES, kill
from tests.deployments.instance import Instance


@contextmanager
def serve(instance: Instance) -> Iterator[str]:
    """The URL of a server that does something to `instance` at each POST: the path says what."""

    def stop() -> str:
        return f"{instance.stop():.1f}"

    def start() -> str:
        instance.start()
        return "ready"

    def kill_gateway() -> str:
        return str(kill(instance, TITLES["gateway"]))

    doing = {"stop": stop, "start": start, "kill-gateway": kill_gateway}
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
