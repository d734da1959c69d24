"""Viewers whose sockets are cut: `python -m bench disruption [--clients N] [--seconds S] … [--quick]`.

The profile that peers publish: 10,000 viewers, 2 messages a second for a minute, every socket cut about every
15 s and away for 2 s. What counts is that each viewer has every message once and in order, and how soon after
it is back it has what it missed. Ours is the whole product, each message durable in PostgreSQL; Centrifugo
keeps its history in memory.
"""

import argparse
import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx

from bench.child import Child
from bench.contenders import ROOT
from bench.machine import raise_open_files
from bench.peers.install import CACHE, PEERS, InstallError, ensure_peer
from bench.product import check, log_in, running_product
from bench.report import Medians
from bench.scenes import Outcome, measure_scenes
from broker.deployments.ports import free_port

SOURCE = ROOT / "bench" / "disrupted"
TOPIC = "bench"
SPARE_FILES = 500
PATIENCE_S = 60.0
_CENTRIFUGO = {
    "allow_anonymous_connect_without_token": True,
    "allow_subscribe_for_client": True,
    "allow_subscribe_for_anonymous": True,
    "api_insecure": True,
    "address": "127.0.0.1",
    "history_size": 1_000,
    "history_ttl": "300s",
    "force_recovery": True,
    "log_level": "error",
}

Publish = Callable[[dict[str, int]], None]


@dataclass(frozen=True, slots=True)
class Profile:
    """What is done to the viewers; times in seconds."""

    clients: int
    seconds: float
    rate_per_s: float
    every_s: float
    away_s: float


def main(words: list[str]) -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m bench disruption", description="Viewers that are cut.")
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=60.0, help="for which messages are published")
    parser.add_argument("--rate", type=float, default=2.0, help="messages a second")
    parser.add_argument("--every", type=float, default=15.0, help="seconds between two cuts of a viewer")
    parser.add_argument("--away", type=float, default=2.0, help="seconds that it stays away")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one run of 500 viewers for ten seconds")
    parser.add_argument("--only", choices=list(_CONTENDERS))
    arguments = parser.parse_args(words)
    profile = Profile(
        500 if arguments.quick else arguments.clients,
        10.0 if arguments.quick else arguments.seconds,
        arguments.rate,
        min(arguments.every, 4.0) if arguments.quick else arguments.every,
        arguments.away,
    )
    open_files = raise_open_files(profile.clients + SPARE_FILES)
    if open_files < profile.clients + SPARE_FILES:
        print(f"only {open_files} files may be open; raise the hard limit (ulimit -Hn) or say --clients")
        return 1
    client = build_client()
    names = [arguments.only] if arguments.only else list(_CONTENDERS)
    acts = {name: partial(run, name, client, profile) for name in names if is_there(name)}
    return measure_scenes("disruption", 1 if arguments.quick else arguments.runs, acts)


def is_there(name: str) -> bool:
    """Whether a contender can be measured; installs it where it can be."""
    if name not in PEERS:
        return True
    try:
        ensure_peer(name)
    except InstallError as error:
        print(f"{name} is left out: {error}")
        return False
    return True


def build_client() -> Path:
    """The viewers, in Go.

    Raises:
        CalledProcessError: it cannot be built.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    program = CACHE / "disruption"
    subprocess.run(["go", "build", "-mod=readonly", "-o", program, "."], cwd=SOURCE, check=True)
    return program


def run(name: str, client: Path, profile: Profile) -> Outcome:
    """One contender under the profile."""
    with _CONTENDERS[name]() as (url, publish):
        command: list[str | Path] = [client, "-kind", name.lower(), "-url", url, "-topic", TOPIC]
        command += ["-clients", str(profile.clients), "-every", f"{profile.every_s}s"]
        command += ["-away", f"{profile.away_s}s", "-patience", f"{PATIENCE_S}s"]
        with Child(command, ROOT) as viewers:
            viewers.receive()
            viewers.send("cut")
            published = pace(publish, profile)
            viewers.send(str(published))
            report = viewers.receive()
    expected = published * profile.clients
    figures: Medians = {"delivered_share": report["delivered"] / expected}
    for figure in ("doubled", "disordered", "unrecovered", "cuts", "failures", "replayed"):
        figures[figure] = float(report[figure])
    for figure in ("replay_p50_ms", "replay_p99_ms", "replay_max_ms", "live_p50_ms", "live_p99_ms"):
        figures[figure] = float(report[figure])
    faults = []
    if name == "Broker":
        wrong = {figure: report[figure] for figure in ("missing", "doubled", "disordered", "unrecovered")}
        faults = [f"{name}: {count} {figure}" for figure, count in wrong.items() if count]
    return {f"{name}, {profile.clients:,} viewers": figures}, faults


def pace(publish: Publish, profile: Profile) -> int:
    """Publish at the profile's rate for its time; returns how many."""
    messages = round(profile.seconds * profile.rate_per_s)
    began_s = time.monotonic()
    for turn in range(messages):
        time.sleep(max(0.0, began_s + turn / profile.rate_per_s - time.monotonic()))
        publish({"n": turn + 1, "sent": time.time_ns() // 1000})
    return messages


@contextlib.contextmanager
def running_broker() -> Iterator[tuple[str, Publish]]:
    """The whole product, with a program that is published to by HTTP."""
    with (
        running_product() as product,
        httpx.Client(base_url=product.base_url, timeout=30) as client,
    ):
        client.headers["Authorization"] = f"Bearer {log_in(client, product.password)}"
        check(client.post("/programs", json={"id": TOPIC, "name": "Bench"}))

        def publish(message: dict[str, int]) -> None:
            event = {"event": "Score#update", "metadata": message}
            check(client.post(f"/programs/{TOPIC}/events", json=event))

        yield f"ws://127.0.0.1:{product.ws_port}/api/v1/ws", publish


@contextlib.contextmanager
def running_centrifugo() -> Iterator[tuple[str, Publish]]:
    """Centrifugo with recovery on, published to by its HTTP interface."""
    port = free_port()
    with tempfile.NamedTemporaryFile("w", suffix=".json") as config:
        json.dump(_CENTRIFUGO | {"port": port}, config)
        config.flush()
        process = subprocess.Popen([PEERS["Centrifugo"].program, "-c", config.name])
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
                _wait_for(client)

                def publish(message: dict[str, int]) -> None:
                    answer = client.post("/api/publish", json={"channel": TOPIC, "data": message})
                    check(answer)

                yield f"ws://127.0.0.1:{port}/connection/websocket", publish
        finally:
            process.terminate()
            process.wait()


def _wait_for(client: httpx.Client) -> None:
    """Return once it answers. Raises httpx.ConnectError when it does not within some seconds."""
    deadline_s = time.monotonic() + 20
    while True:
        try:
            client.get("/")
        except httpx.ConnectError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.1)
        else:
            return


_CONTENDERS: dict[str, Callable[[], contextlib.AbstractContextManager[tuple[str, Publish]]]] = {
    "Broker": running_broker,
    "Centrifugo": running_centrifugo,
}
