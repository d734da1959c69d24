"""Asks for images of one instance, as a client or as a stranger, and looks at its processes."""

import socket
from urllib.parse import quote

import httpx
import psutil

from tests.deployments.image_server import ImageServer
from tests.deployments.instance import Instance
from tests.images.decoder_processes import decoders_of


class ImageDoor:
    """Asks for images of one instance."""

    def __init__(self, instance: Instance, image_server: ImageServer) -> None:
        self._instance = instance
        self._image_server = image_server
        self._client = httpx.Client(base_url=instance.url, timeout=130)

    def get(
        self, options: str, path: str = "/a.png", *, url: str = "", method: str = "GET", **headers: str
    ) -> httpx.Response:
        source = quote(url or self.source(path), safe="")
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return self._client.request(method, f"/api/v2/imgproxy/demo/{options}?url={source}", headers=sent)

    def source(self, path: str) -> str:
        """The URL of a path of the images' server."""
        return self._image_server.url(path)

    def pids(self, kind: str) -> set[int]:
        """The processes of a kind that answer a scrape."""
        page = httpx.get(f"{self._instance.ops_url}/metrics", timeout=30).text
        lines = [line for line in page.splitlines() if line.startswith("broker_process_up{")]
        ours = [line for line in lines if f'process="{kind}"' in line and line.endswith(" 1.0")]
        return {int(line.partition('pid="')[2].partition('"')[0]) for line in ours}

    def decoders(self) -> list[psutil.Process]:
        return [process for pid in self.pids("images") for process in decoders_of(pid)]

    def close(self) -> None:
        self._client.close()

    def decoder_seconds(self) -> float:
        """Processor time that the decoders that live have taken."""
        times = [process.cpu_times() for process in self.decoders()]
        return sum(each.user + each.system for each in times)

    def send(self, request: str) -> tuple[int, dict[str, str], bytes]:
        """Send these very bytes; the status, the headers by their names in lower case, and the body."""
        with socket.create_connection((self._instance.host, self._instance.http_port), 30) as connection:
            connection.sendall(request.encode())
            told = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        head, _, body = told.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return int(first.split()[1]), headers, body

    def send_all(self, requests: str, methods: list[str]) -> list[tuple[int, dict[str, str], bytes]]:
        """Send these very bytes at once; what `send` says of the reply to each request, by its method."""
        replies = []
        with (
            socket.create_connection((self._instance.host, self._instance.http_port), 30) as connection,
            connection.makefile("rb") as reader,
        ):
            connection.sendall(requests.encode())
            for method in methods:
                status = int(reader.readline().split()[1])
                headers = {}
                while line := reader.readline().strip():
                    name, _, value = line.decode().partition(":")
                    headers[name.lower()] = value.strip()
                has_body = method != "HEAD" and status != 304
                body = reader.read(int(headers["content-length"])) if has_body else b""
                replies.append((status, headers, body))
            assert reader.read() == b"", "nothing follows"
        return replies
