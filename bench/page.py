"""What the JavaScript SDK costs a page: `python -m bench page [--rate N] [--seconds S] [--runs N] [--quick]`.

A page in Chromium follows a program and writes every event into its text at once. Its frames, counted by
`requestAnimationFrame`, are compared with those of the same page without a client while another process takes
the same events; and so are those of a page with a WebSocket and no client. Then the heap: bytes a
subscription, in Node and in Chromium, after the garbage has been collected. The gateway is the native server
alone, as no more of the product is measured here; it publishes by itself, and its figure includes that.
*Cores* are CPU seconds a second: they tell a page that lost frames to others from one that was too busy.
"""

import argparse
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from bench.child import Child
from bench.contenders import PROGRAM, ROOT, Contender, build_load, run_python
from bench.report import Medians
from bench.scenes import Outcome, measure_scenes
from broker.deployments.ports import free_port

SOURCE = ROOT / "bench" / "sdk"
MESSAGE_BYTES = 300
SUBSCRIPTIONS = 1_000
BUSY = "busy page"
BESIDE = "idle page beside the events"
BARE = "page without the SDK"
TARGETS = {BUSY: {"frames_lost_share": 0.02}}


def main(words: list[str]) -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m bench page", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rate", type=int, default=10_000, help="events a second")
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one short run: does it work, not how fast")
    arguments = parser.parse_args(words)
    runs, seconds = (1, 2) if arguments.quick else (arguments.runs, arguments.seconds)
    acts: dict[str, Callable[[], Outcome]] = {
        "frames": partial(measure_frames, arguments.rate, seconds),
        "heap": measure_heap,
    }
    targets = {} if arguments.quick else TARGETS
    return measure_scenes("page", runs, acts, targets)


def browser_environment() -> dict[str, str]:
    """Where Chromium is unpacked, and what makes it bring libraries and fonts that a bare machine lacks."""
    client = ROOT / "js" / "client"
    temporary = client / ".build" / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    brought = {
        "AWS_EXECUTION_ENV": "AWS_Lambda_nodejs20.x",
        "FONTCONFIG_FILE": str(client / "test" / "fonts.conf"),
    }
    return {**os.environ, "TMPDIR": str(temporary), **brought}


def open_driver(port: int) -> Child:
    """Node with a browser, whose pages find the gateway at `port`; it says when it is ready."""
    url = f"ws://127.0.0.1:{port}/api/v1/ws"
    return Child(["node", "--expose-gc", SOURCE / "page.mjs", url], ROOT, browser_environment())


def measure_frames(rate: int, seconds: int) -> Outcome:
    """A page that draws, alone and while it shows `rate` events a second, and two controls.

    The page beside the same events, which another process takes, lacks the frames that are lost because the
    processors are full; the page with a WebSocket and no client lacks those that the browser itself costs.

    Raises:
        ChildError: the server or the driver has failed.
    """
    port = free_port()
    faults: list[str] = []
    with Child(run_python("native", "auto")(port), ROOT) as server, open_driver(port) as driver:
        server.receive_serving()
        driver.receive()
        driver.send(f"idle {seconds}")
        idle = driver.receive()
        with Child(
            build_load(port, 1, Contender("broker", run_python("native"), subscribe=PROGRAM)), ROOT
        ) as load:
            load.receive()
            beside, _ = _measure_while_publishing("beside", server, driver, rate, seconds)
        pages = {"idle page": idle, BESIDE: beside}
        scenes = {name: _summarise(page, seconds) for name, page in pages.items()}
        for name, command in ((BARE, "bare"), (BUSY, "busy")):
            page, published_in_s = _measure_while_publishing(command, server, driver, rate, seconds)
            scenes[name] = _summarise(page, seconds) | {"events_per_s": page["events"] / published_in_s}
            if page["events"] != rate * seconds or page["disordered"]:
                faults.append(
                    f"{name}: {page['events']} of {rate * seconds}, {page['disordered']} out of order"
                )
    for name, than in ((BESIDE, "idle page"), (BARE, BESIDE), (BUSY, BESIDE)):
        share = scenes[name]["frames_per_s"] / scenes[than]["frames_per_s"]
        scenes[name]["frames_lost_share"] = max(0.0, 1 - share)
    return scenes, faults


def _measure_while_publishing(
    command: str, server: Child, driver: Child, rate: int, seconds: int
) -> tuple[dict[str, Any], float]:
    """What the driver says of a page meanwhile, and how long publishing took."""
    driver.send(f"{command} {seconds}")
    driver.receive()
    before_s = server.cpu_s()
    server.send(f"publish {rate * seconds} {MESSAGE_BYTES} {1_000_000 // rate}")
    page = driver.receive()
    published_in_s: float = server.receive()["seconds"]
    page["cpu_s"]["gateway"] = server.cpu_s() - before_s
    return page, published_in_s


def _summarise(frames: dict[str, Any], seconds: int) -> Medians:
    names = ("frames_per_s", "longest_ms", "main_thread_share")
    cpu_s = dict(frames["cpu_s"])
    machine_s = cpu_s.pop("machine")
    return (
        {name: float(frames[name]) for name in names}
        | {"dropped_share": frames["dropped"] / (frames["frames_per_s"] * seconds + frames["dropped"])}
        | {f"cores_of_{who}": taken_s / seconds for who, taken_s in cpu_s.items()}
        | {"cores_of_all_else": (machine_s - sum(cpu_s.values())) / seconds}
    )


def measure_heap() -> Outcome:
    """Bytes of heap a subscription.

    Raises:
        ChildError: the server or the driver has failed.
    """
    port = free_port()
    command = run_python("native", "auto", str(SUBSCRIPTIONS))(port)
    with Child(command, ROOT) as server, open_driver(port) as driver:
        server.receive_serving()
        driver.receive()
        driver.send(f"heap {SUBSCRIPTIONS}")
        sizes = driver.receive()
    return {
        f"heap in {place}": {
            "bytes_a_program": sizes[key]["programs"],
            "bytes_a_subscription_to_one_program": sizes[key]["same"],
        }
        for place, key in (("Node", "node"), ("Chromium", "chromium"))
    }, []
