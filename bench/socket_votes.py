"""What a vote over WebSocket costs the whole product, by process.

    python -m bench socket-votes [--runs N] [--connections N] [--quick]

`broker up` with one gateway and one counter; connections send the votes of different visitors one behind the
other, as fast as they are taken. `natively` is the ordinary way. `by Python` are the same votes with an
escape in their text, which the gateway's native code leaves to its Python. All votes are answered as
accepted, and the results must have every one. The client runs on the same machine and is not counted.
"""

import argparse
import base64
import os
import select
import socket
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import httpx
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.machine import describe_machine, raise_open_files
from bench.product import PROGRAM, ProductError, check, log_in, running_product
from bench.rest.instance import SETTINGS, Instance

CONNECTIONS = 2_000
VOTES = {"natively": 400_000, "by Python": 20_000}
"""Votes of a run."""
QUICK = 10
OPTIONS = 4
SHOWN = ("gateway", "counter", "postgres")
ENVIRONMENT = SETTINGS | {
    "BROKER_RESPONSES_RATE_PER_CONNECTION": "0",
    "BROKER_WS_MESSAGES_PER_S": "0",
    "BROKER_WS_CONNECTIONS_PER_ADDRESS": "0",
    "BROKER_WS_PING_S": "3600",
    "BROKER_COUNTERS": "1",
}
FIRST_ID = 1_000_000  # all ids, and so all answers, are equally long
ANSWER = b'{"jsonrpc":"2.0","id":1000000,"result":{"accepted":1,"duplicates":0}}'
HEADER_BYTES = 2
OPEN_S = 0.5  # for the poll to be opened natively after its first vote
RESULTS_S = 1.0  # results are at most so old
DEADLINE_S = 120.0


@dataclass(frozen=True, slots=True)
class Figures:
    """One run: votes a second, and CPU in µs a vote by part."""

    per_s: float
    cpu_us: dict[str, float]


def main(words: Sequence[str]) -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench socket-votes", description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--connections", type=int, default=CONNECTIONS)
    parser.add_argument("--quick", action="store_true", help="one short run: does it work, not how fast")
    arguments = parser.parse_args(words)
    runs, part = (1, QUICK) if arguments.quick else (arguments.runs, 1)
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(", ".join(f"{name} {value}" for name, value in describe_machine().items()))
    raise_open_files(arguments.connections + 100)
    console.print(build_table(measure(runs, part, arguments.connections), runs, arguments.connections))
    return 0


def measure(runs: int, part: int, connections: int) -> dict[str, list[Figures]]:
    """Way → its figures, run by run; a run takes each in turn."""
    gathered: dict[str, list[Figures]] = {}
    with running_product(ENVIRONMENT) as product, Progress(transient=True) as progress:
        mark = (product.directory / "instance").read_text()
        postmaster = (product.directory / "postgres/data/postmaster.pid").read_text().split("\n")[0]
        instance = Instance(product, mark, int(postmaster))
        task = progress.add_task("voting", total=runs * len(VOTES))
        with httpx.Client(base_url=product.base_url, timeout=30) as client:
            client.headers["Authorization"] = f"Bearer {log_in(client, product.password)}"
            check(client.post("/programs", json={"id": PROGRAM, "name": "Bench"}))
            sockets = [connect(product.ws_port) for _ in range(connections)]
            for _ in range(runs):
                for way, votes in VOTES.items():
                    each = max(1, votes // part // connections)
                    figures = storm(instance, client, sockets, each, is_native=way == "natively")
                    gathered.setdefault(way, []).append(figures)
                    progress.advance(task)
            for one in sockets:
                one.close()
    return gathered


def storm(
    instance: Instance, client: httpx.Client, sockets: list[socket.socket], each: int, *, is_native: bool
) -> Figures:
    """One new poll, to which every connection sends `each` votes."""
    metadata = {"title": "Who wins?", "options": [str(option) for option in range(OPTIONS)]}
    answer = client.post(f"/programs/{PROGRAM}/events", json={"event": "Vote#ask", "metadata": metadata})
    check(answer)
    context = answer.json()["id"]
    exchange(sockets[:1], [build_votes(context, "first", 1, is_native=is_native)])
    time.sleep(OPEN_S)
    storms = [
        build_votes(context, f"visitor-{number}", each, is_native=is_native) for number in range(len(sockets))
    ]
    exchange(sockets[:1], [build_votes(context, "second", 1, is_native=is_native)])
    time.sleep(OPEN_S)
    votes = each * len(sockets)
    before_s, began_s = instance.cpu_s(), time.perf_counter()
    exchange(sockets, storms)
    took_s, after_s = time.perf_counter() - began_s, instance.cpu_s()
    time.sleep(RESULTS_S)
    found = client.get("/responses/demo/whoWins/results", params={"contextId": context})
    check(found)
    if found.json()["total"] != votes + 2:
        raise ProductError(f"{found.json()['total']} of {votes + 2} votes are in the results")
    return Figures(votes / took_s, {name: (after_s[name] - before_s[name]) / votes * 1e6 for name in SHOWN})


def connect(port: int) -> socket.socket:
    """An open WebSocket."""
    made = socket.create_connection(("127.0.0.1", port))
    key = base64.b64encode(os.urandom(16)).decode()
    made.sendall(
        f"GET /api/v1/ws HTTP/1.1\r\nHost: localhost:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += made.recv(1)
    if not head.startswith(b"HTTP/1.1 101 "):
        raise ProductError(f"the handshake is refused: {head[:100]!r}")
    made.setblocking(False)
    return made


def build_votes(context: str, visitor: str, count: int, *, is_native: bool) -> bytes:
    """Frames (RFC 6455, section 5) with the votes of so many visitors; 0 is a mask as good as any."""
    program = PROGRAM if is_native else f"\\u{ord(PROGRAM[0]):04x}{PROGRAM[1:]}"
    frames = []
    for number in range(count):
        text = (
            f'{{"jsonrpc":"2.0","id":{FIRST_ID + number},"method":"respond","params":{{'
            f'"programId":"{program}","measureName":"whoWins","contextId":"{context}",'
            f'"measureValue":{number % OPTIONS},"visitorId":"{visitor}-{number}"}}}}'
        ).encode()
        frames.append(b"\x81\xfe" + len(text).to_bytes(2, "big") + bytes(4) + text)
    return b"".join(frames)


def exchange(sockets: list[socket.socket], storms: list[bytes]) -> None:
    """Send each socket its frames and wait until all are answered as accepted. Raises ProductError."""
    poll = select.epoll()
    unsent = {one.fileno(): memoryview(storm) for one, storm in zip(sockets, storms, strict=True)}
    by_number = {one.fileno(): one for one in sockets}
    size = HEADER_BYTES + len(ANSWER)
    missing = {
        one.fileno(): storm.count(b"\x81\xfe") * size for one, storm in zip(sockets, storms, strict=True)
    }
    for number in unsent:
        poll.register(number, select.EPOLLIN | select.EPOLLOUT)
    until_s = time.monotonic() + DEADLINE_S
    while missing:
        if time.monotonic() > until_s:
            raise ProductError(f"{sum(missing.values()) // size} votes are not answered")
        for number, event in poll.poll(1.0):
            one = by_number[number]
            if event & select.EPOLLIN:
                piece = one.recv(1 << 16)
                missing[number] -= len(piece)
                if not piece or b'"error"' in piece or b'"accepted":0' in piece or missing[number] < 0:
                    raise ProductError(f"a vote was not accepted: {piece[:300]!r}")
                if not missing[number]:
                    del missing[number]
                    poll.unregister(number)
                    continue
            if event & select.EPOLLOUT:
                rest = unsent[number]
                unsent[number] = rest[one.send(rest[: 1 << 16]) :]
                if not unsent[number]:
                    poll.modify(number, select.EPOLLIN)
    poll.close()


def build_table(gathered: dict[str, list[Figures]], runs: int, connections: int) -> Table:
    """Medians, a line for each way."""
    title = f"CPU µs a vote of {connections:,} connections, medians of {runs} runs"
    table = Table(title=title, title_justify="left")
    table.add_column("taken", no_wrap=True)
    for name in ("votes/s", *SHOWN):
        table.add_column(name, justify="right")
    for way, figures in gathered.items():
        cells = [f"{statistics.median(one.cpu_us[name] for one in figures):.2f}" for name in SHOWN]
        table.add_row(way, f"{statistics.median(one.per_s for one in figures):,.0f}", *cells)
    return table
