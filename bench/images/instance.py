"""A running product that may fetch images from the bench's server, and what its parts use."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import httpx

from bench.child import Child
from bench.contenders import EXAMPLES, ROOT
from bench.images.processes import tree_cpu_s, tree_pss_mb, tree_unbacked_mb
from bench.product import Product, ProductError, check, running_product
from bench.rest.instance import deploy_bare, read_title, select
from broker.deployments.ports import free_port
from broker.deployments.processes import list_marked

SETTINGS = {
    "BROKER_IMAGES_RATE_PER_ACCOUNT": "0",
    "BROKER_IMAGES_RATE_PER_ADDRESS": "0",
    "BROKER_IMAGES_REPLICAS_MIN": "1",
    "BROKER_IMAGES_REPLICAS_MAX": "1",
    "BROKER_FACES_REPLICAS_MAX": "1",
}
"""One replica, as everybody else has one server, and no limit on what may be made."""
PARTS = {
    "images": "ray::ServeReplica:broker-images:",
    "faces": "ray::ServeReplica:faces:",
    "ingress": "haproxy -",
}
"""Part → what the titles of its processes have in them."""
_FACES_S = 120.0


@dataclass(frozen=True, slots=True)
class ImageInstance:
    """A product and where its images come from."""

    product: Product
    upstream: str
    ops_port: int

    def path(self, options: str, source: str) -> str:
        """Of the image made of `source`, a path of the upstream."""
        return f"/api/v2/imgproxy/demo/{options}?url={quote(f'http://{self.upstream}/{source}', safe='')}"

    def request(self, options: str, source: str) -> str:
        """The same as it goes over the wire."""
        return (
            f"GET {self.path(options, source)} HTTP/1.1\r\nHost: localhost:{self.product.http_port}\r\n\r\n"
        )

    def get(self, options: str, source: str) -> httpx.Response:
        """One image.

        Raises:
            ProductError: there is none.
        """
        url = f"http://localhost:{self.product.http_port}{self.path(options, source)}"
        reply = httpx.get(url, timeout=60)
        check(reply)
        return reply

    def pids(self, *parts: str) -> list[int]:
        """The processes of some parts."""
        titles = {
            pid: read_title(pid) for pid in list_marked((self.product.directory / "instance").read_text())
        }
        return [pid for part in parts for pid in select(titles, PARTS[part])]

    def cpu_s(self, *parts: str) -> float:
        """CPU seconds of parts and their children."""
        return tree_cpu_s(self.pids(*parts))

    def pss_mb(self, *parts: str) -> float:
        """Memory of parts and their children."""
        return tree_pss_mb(self.pids(*parts))

    def unbacked_mb(self, *parts: str) -> float:
        """The same without the pages of files."""
        return tree_unbacked_mb(self.pids(*parts))

    def count(self, metric: str, **labels: str) -> float:
        """A counter of the product, over all its processes."""
        page = httpx.get(f"http://localhost:{self.ops_port}/metrics", timeout=30).text
        wanted = [f'{name}="{value}"' for name, value in labels.items()]
        lines = [line for line in page.splitlines() if line.startswith((f"{metric}{{", f"{metric} "))]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if all(part in line for part in wanted))

    def wait_for_faces(self, source: str) -> None:
        """Wait until the detector answers. Raises ProductError when it does not."""
        until_s = time.monotonic() + _FACES_S
        number = 0
        while self.get("f=json", f"{source}?salt=wait-{number}").json()["faces"] is None:
            number += 1
            if time.monotonic() > until_s:
                raise ProductError("no detector answers")


@contextmanager
def running_upstream(directory: Path) -> Iterator[tuple[Child, str]]:
    """The server of images over the files of a directory, and its address."""
    with Child([sys.executable, "-m", "bench.images.upstream", directory], ROOT) as child:
        yield child, f"127.0.0.1:{child.receive()['port']}"


@contextmanager
def running_images(
    upstream: str, settings: dict[str, str] | None = None, *, with_bare: bool = False
) -> Iterator[ImageInstance]:
    """A product that answers for images.

    Args:
        upstream: `host:port` that it may fetch from.
        with_bare: whether the bare deployment stands beside it (`bench.rest.bare`).

    Raises:
        ProductError: it does not start.
    """
    ops_port = free_port()
    own = SETTINGS | {"BROKER_IMAGES_ALLOW_HOSTS": upstream, "BROKER_OPS_PORT": str(ops_port)}
    with running_product(own | (settings or {})) as product:
        if with_bare:
            titles = {
                pid: read_title(pid) for pid in list_marked((product.directory / "instance").read_text())
            }
            deploy_bare(titles)
        yield ImageInstance(product, upstream, ops_port)


def take_requests(upstream: Child) -> int:
    """How many requests the upstream had since the last call."""
    upstream.send("count")
    return int(upstream.receive()["requests"])


@contextmanager
def open_load(port: int) -> Iterator[Child]:
    """The client, which keeps its connections from round to round."""
    with Child([EXAMPLES / "http_load", f"127.0.0.1:{port}"], ROOT) as load:
        yield load
