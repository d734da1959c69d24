"""Viewers whose sockets are cut: `python -m bench disruption [--clients N] [--seconds S] … [--quick]`.

The profile that peers publish: 10,000 viewers, 2 messages a second for a minute, every socket cut about every
15 s and away for 2 s. What counts is that each viewer has every message once and in order, and how soon after
it is back it has what it missed. Ours is the whole product, each message durable in PostgreSQL; Centrifugo
keeps its history in memory. The viewers' program shares the machine, so what each side took of the processors
is told too. In a run of its own some viewers have the JavaScript SDK, in Node and in pages of Chromium.
"""

import argparse
import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx

from bench.child import Child
from bench.contenders import ROOT
from bench.machine import raise_open_files, read_busy_s
from bench.page import browser_environment
from bench.peers.install import CACHE, PEERS, InstallError, ensure_peer
from bench.processes import cpu_s
from bench.product import check, log_in, running_product
from bench.report import Medians
from bench.rest.instance import process_cpu_s
from bench.scenes import Outcome, measure_scenes
from broker.deployments.ports import free_port

SOURCE = ROOT / "bench" / "disrupted"
SDK = ROOT / "bench" / "sdk" / "disruption.mjs"
WITH_SDK = "Broker, some with the SDK"
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
COUNTED = ("doubled", "disordered", "unrecovered", "cuts", "failures", "replayed")
TIMED = ("replay_p50_ms", "replay_p99_ms", "replay_max_ms", "live_p50_ms", "live_p99_ms")


@dataclass(frozen=True, slots=True)
class Served:
    """A server that runs, with something to publish to."""

    http_url: str
    ws_url: str
    publish: Publish
    cpu_s: Callable[[], dict[str, float]]
    """Kind of process → CPU seconds so far."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What is done to the viewers; times in seconds."""

    clients: int
    seconds: float
    rate_per_s: float
    every_s: float
    away_s: float
    with_sdk: int = 0
    """Of the clients, those with the JavaScript SDK where it takes part."""
    tabs: int = 10
    """Pages that share a fifth of those; the rest is in Node."""


def main(words: list[str]) -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m bench disruption", description="Viewers that are cut.")
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=60.0, help="for which messages are published")
    parser.add_argument("--rate", type=float, default=2.0, help="messages a second")
    parser.add_argument("--every", type=float, default=15.0, help="seconds between two cuts of a viewer")
    parser.add_argument("--away", type=float, default=2.0, help="seconds that it stays away")
    parser.add_argument("--sdk", type=int, default=500, help="viewers with the JavaScript SDK")
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
        50 if arguments.quick else arguments.sdk,
    )
    open_files = raise_open_files(profile.clients + SPARE_FILES)
    if open_files < profile.clients + SPARE_FILES:
        print(f"only {open_files} files may be open; raise the hard limit (ulimit -Hn) or say --clients")
        return 1
    client = build_client()
    names = [arguments.only] if arguments.only else list(_CONTENDERS)
    acts = {name: partial(run, name, client, profile) for name in names if is_there(name)}
    runs = 1 if arguments.quick else arguments.runs
    return measure_scenes("disruption", runs, acts, with_load_client=False)


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
    with_sdk = profile.with_sdk if name == WITH_SDK else 0
    with contextlib.ExitStack() as stack:
        served = stack.enter_context(_CONTENDERS[name]())
        kind = "centrifugo" if name == "Centrifugo" else "broker"
        command: list[str | Path] = [client, "-kind", kind, "-url", served.ws_url, "-topic", TOPIC]
        command += ["-clients", str(profile.clients - with_sdk), "-every", f"{profile.every_s}s"]
        command += ["-away", f"{profile.away_s}s", "-patience", f"{PATIENCE_S}s"]
        children = [stack.enter_context(Child(command, ROOT))]
        if with_sdk:
            options = json.dumps(build_options(served.http_url, profile))
            sdk: list[str | Path] = ["node", "--max-old-space-size=1024", SDK, options]
            children.append(stack.enter_context(Child(sdk, ROOT, browser_environment())))
        for child in children:
            child.receive()
        for child in children:
            child.send("cut")
        before, busy_before_s = served.cpu_s(), read_busy_s()
        clients_before_s, began_s = children[0].cpu_s(), time.monotonic()
        published = pace(served.publish, profile)
        seconds = time.monotonic() - began_s
        clients_s, busy_s = children[0].cpu_s() - clients_before_s, read_busy_s() - busy_before_s
        server = {kind: taken_s - before.get(kind, 0.0) for kind, taken_s in served.cpu_s().items()}
        for child in children:
            child.send(str(published))
        reports = [child.receive() for child in children]
    title = f"{name}, {profile.clients:,} viewers"
    cores = {
        "cores_of_server": sum(server.values()) / seconds,
        "cores_of_gateway": server.get("gateway", 0.0) / seconds,
        "cores_of_viewers": clients_s / seconds,
        "cores_of_all_else": (busy_s - clients_s - sum(server.values())) / seconds,
    }
    scenes = {title: summarise(reports[0], published, profile.clients - with_sdk) | cores}
    told = {title: reports[0]}
    for place, report in (reports[1] if with_sdk else {}).items():
        scenes[f"of them, SDK in {place}, {report['viewers']}"] = summarise(
            report, published, report["viewers"]
        )
        told[f"SDK in {place}"] = report
    faults = []
    if name != "Centrifugo":
        kinds = ("missing", "doubled", "disordered", "unrecovered")
        faults = [f"{who}: {it[kind]} {kind}" for who, it in told.items() for kind in kinds if it[kind]]
    return scenes, faults


def build_options(url: str, profile: Profile) -> dict[str, object]:
    """What the viewers with the SDK are told."""
    each = max(1, profile.with_sdk // 5 // profile.tabs)
    return {
        "url": url,
        "program": TOPIC,
        "node": profile.with_sdk - each * profile.tabs,
        "tabs": profile.tabs,
        "each": each,
        "everyMs": profile.every_s * 1000,
        "awayMs": profile.away_s * 1000,
        "patienceMs": PATIENCE_S * 1000,
    }


def summarise(report: Mapping[str, float], published: int, viewers: int) -> Medians:
    """The figures of one report."""
    figures: Medians = {"delivered_share": report["delivered"] / (published * viewers)}
    return figures | {figure: float(report[figure]) for figure in (*COUNTED, *TIMED) if figure in report}


def pace(publish: Publish, profile: Profile) -> int:
    """Publish at the profile's rate for its time; returns how many."""
    messages = round(profile.seconds * profile.rate_per_s)
    began_s = time.monotonic()
    for turn in range(messages):
        time.sleep(max(0.0, began_s + turn / profile.rate_per_s - time.monotonic()))
        publish({"n": turn + 1, "sent": time.time_ns() // 1000})
    return messages


@contextlib.contextmanager
def running_broker() -> Iterator[Served]:
    """The whole product, with a program that is published to by HTTP."""
    with (
        running_product({"BROKER_WS_CONNECTIONS_PER_ADDRESS": "0"}) as product,
        httpx.Client(base_url=product.base_url, timeout=30) as client,
    ):
        client.headers["Authorization"] = f"Bearer {log_in(client, product.password)}"
        check(client.post("/programs", json={"id": TOPIC, "name": "Bench"}))

        def publish(message: dict[str, int]) -> None:
            event = {"event": "Score#update", "metadata": message}
            check(client.post(f"/programs/{TOPIC}/events", json=event))

        ws_url = f"ws://127.0.0.1:{product.ws_port}/api/v1/ws"
        http_url = f"http://localhost:{product.http_port}"
        yield Served(http_url, ws_url, publish, partial(cpu_s, product))


@contextlib.contextmanager
def running_centrifugo() -> Iterator[Served]:
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

                url = f"ws://127.0.0.1:{port}/connection/websocket"
                yield Served(
                    f"http://127.0.0.1:{port}",
                    url,
                    publish,
                    lambda: {"gateway": process_cpu_s(process.pid)},
                )
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


_CONTENDERS: dict[str, Callable[[], contextlib.AbstractContextManager[Served]]] = {
    "Broker": running_broker,
    WITH_SDK: running_broker,
    "Centrifugo": running_centrifugo,
}
