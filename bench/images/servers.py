"""The service through its ingress beside other people's servers: distinct and equal URLs, p99, CPU, memory.

All have the two cores and the same upstream, and make of a photograph a JPEG of 400 × 300. To a quarter of
its sides a JPEG's decoder can do all the shrinking. Theirs let it, ours by default does not, since it costs
detail. To a fifth all of them filter. A large PNG has to be decoded as a whole.

Servers that can keep their sources and results do so, on disk, since ours does. Ours is measured with two
more settings: with the JPEG decoder's shrinking, and, as imgproxy, with nothing kept at all.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from urllib.parse import quote

from bench.child import Child, ChildError
from bench.images.instance import open_load, running_images, running_upstream
from bench.images.photographs import portrait_jpeg, portrait_png
from bench.images.processes import list_tree, tree_cpu_s, tree_pss_mb
from bench.peers.install import CACHE, InstallError, ensure_peer
from bench.report import Medians
from bench.scenes import Outcome
from broker.deployments.ports import free_port

SOURCE = (1_600, 1_200)  # to a quarter
_FIFTH = (2_000, 1_500)
_LARGE = (4_000, 3_000)
DISTINCT_AT_A_TIME, EQUAL_AT_A_TIME = 16, 64
"""Connections, each with one request under way; ours fetches at most 32 at a time from one host."""
_DISTINCT_PER_S = 250
"""Different URLs for each second on each connection. Nobody is as fast, also not on a single connection that
has a process of the server for itself."""
_START_S = 30.0
_WARM_S = 1.0
_SETTLE_S = 5.0
"""After the first image: the ingress is reloaded for its replica, and closes what was connected before."""
_OPTIONS = "w=400,h=300,fit=fill,f=jpg"
_FAST = {"BROKER_IMAGES_SHRINK": "fast"}
_BROKERS = {
    "broker": {},
    "broker, fast": _FAST,
    "broker, fast, nothing kept": _FAST | {"BROKER_IMAGES_DISK_BYTES": "0", "BROKER_IMAGES_CACHE_BYTES": "0"},
}
_THUMBOR = """
STORAGE = "thumbor.storages.file_storage"
FILE_STORAGE_ROOT_PATH = {directory!r} "/sources"
RESULT_STORAGE = "thumbor.result_storages.file_storage"
RESULT_STORAGE_FILE_STORAGE_ROOT_PATH = {directory!r} "/results"
RESULT_STORAGE_STORES_UNSAFE = True
"""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs.

    Attributes:
        path: of the result for a source's URL.
        roots: processes that count, with their children; asked for anew each time.
    """

    port: int
    path: Callable[[str], str]
    roots: Callable[[], list[int]]


Peer = tuple[Server, list[str | Path], Mapping[str, str]]
"""A server, the command that starts it, and what that finds in its environment."""


def measure_servers(seconds: float) -> Outcome:
    """Server and case → figures."""
    scenes: dict[str, Medians] = {}
    faults: list[str] = []
    numbers = count()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="broker-bench-")))
        (directory / "sources").mkdir()
        (directory / "sources/photograph.jpg").write_bytes(portrait_jpeg(*SOURCE))
        (directory / "sources/larger.jpg").write_bytes(portrait_jpeg(*_FIFTH))
        (directory / "sources/large.png").write_bytes(portrait_png(*_LARGE))
        _, upstream = stack.enter_context(running_upstream(directory / "sources"))
        file = directory / "requests.json"
        for name, open_server in list_servers(upstream, directory).items():
            try:
                with open_server() as server, open_load(server.port) as load:
                    for case, photograph, at_a_time, is_distinct in (
                        ("distinct", "photograph.jpg", DISTINCT_AT_A_TIME, True),
                        ("distinct, to a fifth", "larger.jpg", DISTINCT_AT_A_TIME, True),
                        ("distinct, large PNG", "large.png", DISTINCT_AT_A_TIME, True),
                        ("equal", "photograph.jpg", EQUAL_AT_A_TIME, False),
                    ):
                        amount = int(_DISTINCT_PER_S * at_a_time * (_WARM_S + seconds)) if is_distinct else 1
                        urls = [f"http://{upstream}/{photograph}?n={next(numbers)}" for _ in range(amount)]
                        requests = [build_request(server, url) for url in urls]
                        figures, failures = run(load, server, file, requests, at_a_time, seconds)
                        scenes[f"{name}, {case}"] = figures
                        faults += [f"{name}, {case}: {failure}" for failure in failures]
            except InstallError as error:
                print(f"{name} is missing: {error}")
            except ChildError as error:
                faults.append(f"{name}: {error}")
    return scenes, faults


def build_request(server: Server, url: str) -> str:
    """As it goes over the wire."""
    return f"GET {server.path(url)} HTTP/1.1\r\nHost: localhost:{server.port}\r\nAccept: */*\r\n\r\n"


def run(
    load: Child, server: Server, file: Path, requests: list[str], at_a_time: int, seconds: float
) -> tuple[Medians, list[str]]:
    """One round after a short one that warms, each with requests of its own where there are several.

    Args:
        file: that the client reads them from.
    """
    warming = int(_DISTINCT_PER_S * at_a_time * _WARM_S)
    file.write_text(json.dumps(requests[:warming]))
    load.send(f"run {file} {at_a_time} {_WARM_S}")
    load.receive()
    file.write_text(json.dumps(requests[warming:] or requests))
    before_s = tree_cpu_s(server.roots())
    load.send(f"run {file} {at_a_time} {seconds}")
    report = load.receive()
    cpu_s = tree_cpu_s(server.roots()) - before_s
    replies = report["replies"]
    figures = {
        "per_s": replies / report["microseconds"] * 1e6,
        "p50_ms": report["p50_us"] / 1_000,
        "p99_ms": report["p99_us"] / 1_000,
        "CPU_ms": cpu_s / replies * 1_000,
        "PSS_MB": tree_pss_mb(server.roots()),
        "bytes": float(report["body_bytes"]),
    }
    failures = (
        [f"{report['failures']} failures; {report['first_failure'][-200:]}"] if report["failures"] else []
    )
    return figures, failures


def list_servers(upstream: str, directory: Path) -> dict[str, Callable[[], AbstractContextManager[Server]]]:
    """What runs each; where it cannot be had here that raises InstallError."""
    return {
        **{name: partial(running_broker, upstream, settings) for name, settings in _BROKERS.items()},
        "imgproxy": partial(running_peer, build_imgproxy, directory / "imgproxy"),
        "imagor": partial(running_peer, build_imagor, directory / "imagor"),
        "thumbor": partial(running_peer, build_thumbor, directory / "thumbor"),
    }


@contextmanager
def running_broker(upstream: str, settings: dict[str, str]) -> Iterator[Server]:
    """Ours, through its ingress."""
    with running_images(upstream, settings) as instance:
        instance.get(_OPTIONS, "photograph.jpg?n=first")
        time.sleep(_SETTLE_S)
        yield Server(
            instance.product.http_port,
            lambda url: instance.path(_OPTIONS, url.split("/", 3)[3]),
            lambda: instance.pids("images", "ingress"),
        )


@contextmanager
def running_peer(build: Callable[[Path], Peer], place: Path) -> Iterator[Server]:
    """Somebody else's, with a directory of its own."""
    place.mkdir()
    server, command, environment = build(place)
    with running(command, environment, server.port) as process:
        yield replace(server, roots=partial(list, [process.pid]))


@contextmanager
def running(
    command: list[str | Path], environment: Mapping[str, str], port: int
) -> Iterator[subprocess.Popen[bytes]]:
    """A server that listens. Raises ChildError when it does not."""
    process = subprocess.Popen(
        command, env=os.environ | dict(environment), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until_s = time.monotonic() + _START_S
        while not _is_listening(port):
            if process.poll() is not None or time.monotonic() > until_s:
                raise ChildError(f"{Path(command[0]).name} does not listen")
            time.sleep(0.1)
        yield process
    finally:
        for one in list_tree([process.pid]):  # who forks for each core need not end its children
            one.terminate()
        process.wait()


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def build_imgproxy(directory: Path) -> Peer:
    """imgproxy, if one is installed: no registry has it. It keeps no results."""
    del directory
    program, port = shutil.which("imgproxy"), free_port()
    if program is None:
        raise InstallError("the Go module proxy does not give it, and no program of that name is installed")
    environment = {
        "IMGPROXY_BIND": f"127.0.0.1:{port}",
        "IMGPROXY_ALLOW_LOOPBACK_SOURCE_ADDRESSES": "true",
        "IMGPROXY_QUALITY": "85",
        "IMGPROXY_LOG_LEVEL": "error",
    }
    return Server(port, _imgproxy_path, list), [program], environment


def _imgproxy_path(url: str) -> str:
    return f"/insecure/rs:fill:400:300/plain/{quote(url, safe='')}@jpg"


def build_imagor(directory: Path) -> Peer:
    """Imagor over sharp's libvips."""
    ensure_peer("imagor")
    port = free_port()
    command: list[str | Path] = [
        CACHE / "imagor",
        *("-port", str(port), "-server-address", "127.0.0.1", "-imagor-unsafe"),
        *("-file-storage-base-dir", directory / "sources"),
        *("-file-result-storage-base-dir", directory / "results"),
        *("-imagor-storage-path-style", "digest", "-imagor-result-storage-path-style", "digest"),
    ]
    return Server(port, _unsafe_path, list), command, {}


def build_thumbor(directory: Path) -> Peer:
    """Thumbor with a process for each core."""
    ensure_peer("thumbor")
    port, config = free_port(), directory / "thumbor.conf"
    config.write_text(_THUMBOR.format(directory=str(directory)))
    command: list[str | Path] = [
        *(sys.executable, "-c", "from thumbor.server import main; main()"),
        *("--port", str(port), "--ip", "127.0.0.1", "--conf", config),
        *("--processes", str(len(os.sched_getaffinity(0)))),
    ]
    return Server(port, _unsafe_path, list), command, {"PYTHONPATH": str(CACHE / "thumbor")}


def _unsafe_path(url: str) -> str:
    return f"/unsafe/400x300/filters:format(jpeg):quality(85)/{quote(url, safe='')}"
