"""How fast the dashboard is: `python -m bench dashboard [--rate N] [--seconds S] [--runs N] [--quick]`.

Chromium is started before the product, as a producer's is. Right after `ready` it opens the dashboard, with
no file in its cache: first paint. Then it logs in and opens a program of 10,000 events, reads all of them
into its list, and stays there while a producer publishes: its frames, counted by `requestAnimationFrame`,
beside those of the same list while nothing is published.
"""

import argparse
import time
from functools import partial

import httpx

from bench.child import Child
from bench.contenders import ROOT
from bench.page import browser_environment
from bench.product import PROGRAM, build_event, check, log_in, running_product
from bench.report import Medians
from bench.scenes import Outcome, measure_scenes

SOURCE = ROOT / "bench" / "sdk"
EVENTS = 10_000
BATCHES_PER_S = 20
PAINT, QUIET, BUSY = "first visit", "list at rest", "list that grows"
TARGETS = {PAINT: {"first_paint_ms": 1_000.0}, BUSY: {"frames_lost_share": 0.02}}


def main(words: list[str]) -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m bench dashboard", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--rate", type=int, default=100, help="events a second")
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one short run: does it work, not how fast")
    arguments = parser.parse_args(words)
    runs, seconds = (1, 2) if arguments.quick else (arguments.runs, arguments.seconds)
    acts = {"dashboard": partial(measure_dashboard, arguments.rate, seconds)}
    targets = {} if arguments.quick else TARGETS
    return measure_scenes("dashboard", runs, acts, targets, with_load_client=False)


def measure_dashboard(rate: int, seconds: int) -> Outcome:
    """One visit to a new instance.

    Raises:
        ProductError: the product does not start or refuses something.
        ChildError: the browser has failed.
    """
    command = ["node", SOURCE / "dashboard.mjs"]
    with Child(command, ROOT, browser_environment()) as driver:
        driver.receive()
        with running_product() as product:
            driver.send(f"visit {product.base_url.removesuffix('/api/v1')}/dashboard/")
            visit = driver.receive()
            with httpx.Client(base_url=product.base_url, timeout=60) as client:
                client.headers["Authorization"] = f"Bearer {log_in(client, product.password)}"
                fill_program(client)
                driver.send(f"open admin {product.password} {PROGRAM}")
                opened = driver.receive()
                quiet = measure_frames(driver, seconds)
                published = publish_while(driver, client, rate, seconds)
                busy = driver.receive()
    faults = (
        [] if busy["total"] == EVENTS + published else [f"{busy['total']} events of {EVENTS + published}"]
    )
    quiet_per_s, busy_per_s = float(quiet["frames_per_s"]), float(busy["frames_per_s"])
    names = ("frames_per_s", "longest_ms", "main_thread_share")
    scenes: dict[str, Medians] = {
        PAINT: {name: float(visit[name]) for name in ("first_paint_ms", "log_in_ready_ms", "kilobytes")},
        "10,000 events read": {name: float(opened[name]) for name in ("program_to_stream_ms", "all_read_ms")},
        QUIET: {name: float(quiet[name]) for name in names},
        BUSY: {name: float(busy[name]) for name in names}
        | {"frames_lost_share": max(0.0, 1 - busy_per_s / quiet_per_s)},
    }
    return scenes, faults


def fill_program(client: httpx.Client) -> None:
    """A program of 10,000 events."""
    check(client.post("/programs", json={"id": PROGRAM, "name": "Bench"}))
    events = [build_event() for _ in range(EVENTS)]
    check(client.post(f"/programs/{PROGRAM}/events/import", json={"events": events}))


def measure_frames(driver: Child, seconds: int) -> dict[str, float]:
    """The frames of the open page."""
    driver.send(f"frames {seconds} 0")
    driver.receive()
    return driver.receive()


def publish_while(driver: Child, client: httpx.Client, rate: int, seconds: int) -> int:
    """Publish evenly while the driver counts frames; how many events that were."""
    batch = max(1, rate // BATCHES_PER_S)
    count = rate * seconds // batch
    driver.send(f"frames {seconds} {EVENTS + count * batch}")
    driver.receive()
    began_s = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, began_s + number * batch / rate - time.monotonic()))
        body = {"events": [build_event() for _ in range(batch)]}
        check(client.post(f"/programs/{PROGRAM}/events", json=body))
    return count * batch
