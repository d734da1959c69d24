"""Latency of the whole product: `broker up` on a fresh data directory, one producer, some viewers."""

import asyncio
import os
import secrets
import selectors
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import orjson
from websockets.asyncio.client import connect

from bench.child import Child
from bench.contenders import EXAMPLES, ROOT
from bench.measure import find_faults, to_ms
from broker.deployments.ports import free_port

VIEWERS = 20
RATE_PER_S = 50
START_S = 120.0
STOP_S = 30.0
PROGRAM = "bench"


class ProductError(Exception):
    """The product does not start, or answers with an error."""


@dataclass(frozen=True, slots=True)
class Product:
    """Where a running product is, and how to log in."""

    http_port: int
    ws_port: int
    password: str
    directory: Path
    pid: int

    @property
    def base_url(self) -> str:
        """Of the REST interface."""
        return f"http://localhost:{self.http_port}/api/v1"


def measure_product(messages: int) -> tuple[dict[str, dict[str, float]], list[str]]:
    """Start the product, publish `messages` events by each door.

    Returns:
        door → figures in milliseconds, and the faults that viewers saw.

    Raises:
        ProductError: it does not start or refuses something.
        ChildError: the load client has failed.
    """
    with running_product() as product:
        with httpx.Client(base_url=product.base_url, timeout=30) as client:
            token = log_in(client, product.password)
            created = client.post(
                "/programs",
                json={"id": PROGRAM, "name": "Bench"},
                headers={"Authorization": f"Bearer {token}"},
            )
            check(created)
        command: list[str | Path] = [
            EXAMPLES / "load",
            f"127.0.0.1:{product.ws_port}",
            "--connections",
            str(VIEWERS),
        ]
        command += ["--host", f"localhost:{product.ws_port}", "--subscribe", f'{{"programId":"{PROGRAM}"}}']
        latencies: dict[str, dict[str, float]] = {}
        faults: list[str] = []
        with Child(command, ROOT) as load:
            load.receive()
            for door, publish in (("HTTP", publish_http), ("WebSocket", publish_websocket)):
                load.send(f"expect {messages} 60")
                load.receive()
                acknowledged_s = asyncio.run(publish(product, token, messages))
                report = load.receive()
                faults += find_faults(f"product, {door}", report)
                latencies[door] = {
                    "p50_ms": to_ms(report["latency_p50_us"]),
                    "p99_ms": to_ms(report["latency_p99_us"]),
                    "acknowledged_p50_ms": statistics.median(acknowledged_s) * 1000,
                }
    return latencies, faults


@contextmanager
def running_product(settings: Mapping[str, str] | None = None, root: Path = ROOT) -> Iterator[Product]:
    """`broker up` with free ports and a temporary data directory; yields when it is ready.

    Args:
        settings: variables of its environment.
        root: the checkout that runs; another one than ours has its packages in `.venv`.
    """
    with tempfile.TemporaryDirectory(prefix="broker-bench-") as directory:
        http_port, ws_port, password = free_port(), free_port(), secrets.token_urlsafe(12)
        python = Path(sys.executable) if root == ROOT else root / ".venv/bin/python"
        command: list[str | Path] = [python.with_name("broker"), "up", "--data-dir", directory]
        command += ["--http-port", str(http_port), "--ws-port", str(ws_port)]
        own = {"BROKER_ADMIN_PASSWORD": password, "BROKER_OPS_PORT": str(free_port())}
        environment = os.environ | own | (settings or {})
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, cwd=root)
        try:
            wait_until_ready(process)
            yield Product(http_port, ws_port, password, Path(directory), process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout
            process.stdout.close()


def wait_until_ready(process: subprocess.Popen[bytes]) -> None:
    """Read what the product prints until the line that begins with `ready`."""
    assert process.stdout
    deadline = time.monotonic() + START_S
    text = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while selector.select(max(0.0, deadline - time.monotonic())):
            piece = os.read(process.stdout.fileno(), 4096)
            if not piece:
                raise ProductError(f"broker up ended: {text.decode(errors='replace').strip()[-300:]}")
            text += piece
            if any(line.startswith(b"ready") for line in text.splitlines()):
                return
    raise ProductError(f"broker up was not ready within {START_S:.0f} s")


def log_in(client: httpx.Client, password: str) -> str:
    """A token of the account's first user."""
    form = {"grant_type": "password", "client_id": "Test", "username": "admin", "password": password}
    answer = client.post("/token", json=form)
    check(answer)
    return str(answer.json()["access_token"])


def check(answer: httpx.Response) -> None:
    """ProductError for an HTTP error."""
    if answer.is_error:
        raise ProductError(f"{answer.request.method} {answer.request.url.path}: {answer.text[:300]}")


def build_event() -> dict[str, object]:
    """An event of about 300 bytes that says when it was published, in nanoseconds of the monotonic clock."""
    return {"event": "Score#update", "metadata": {"sent": time.monotonic_ns(), "filler": "x" * 60}}


async def publish_http(product: Product, token: str, messages: int) -> list[float]:
    """Publish over one kept connection; seconds from each call to its answer."""
    async with httpx.AsyncClient(
        base_url=product.base_url, headers={"Authorization": f"Bearer {token}"}, timeout=30
    ) as client:

        async def publish() -> None:
            check(await client.post(f"/programs/{PROGRAM}/events", json=build_event()))

        return await pace(publish, messages)


async def publish_websocket(product: Product, token: str, messages: int) -> list[float]:
    """Publish with the operation `producer` over one connection; seconds from each call to its answer."""
    url = f"ws://localhost:{product.ws_port}/api/v1/ws"
    headers = {"Authorization": f"Bearer {token}"}
    async with connect(url, additional_headers=headers, compression=None) as socket:

        async def publish() -> None:
            params = {"programId": PROGRAM, **build_event()}
            call = {"jsonrpc": "2.0", "id": 1, "method": "producer", "params": params}
            await socket.send(orjson.dumps(call).decode())
            answer = orjson.loads(await socket.recv())
            if "result" not in answer:
                raise ProductError(f"producer: {answer}")

        return await pace(publish, messages)


async def pace(publish: Callable[[], Awaitable[None]], messages: int) -> list[float]:
    """Call `publish` at `RATE_PER_S`, never two at a time."""
    began = time.monotonic()
    durations_s = []
    for turn in range(messages):
        await asyncio.sleep(max(0.0, began + turn / RATE_PER_S - time.monotonic()))
        called = time.monotonic()
        await publish()
        durations_s.append(time.monotonic() - called)
    return durations_s
