"""What comes from the cache beside a bare deployment, and a thousand equal requests at once."""

import json
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path

from bench.images.instance import ImageInstance, open_load, running_images, running_upstream, take_requests
from bench.images.photographs import portrait_jpeg
from bench.rest.cases import bare_request
from bench.scenes import Outcome

LEAST_SHARE = 0.8
"""Of the bare deployment's rate, for what comes from the cache."""
EQUAL = 1_000
_CONNECTIONS = 64
_ROUNDS = 4
_WARM_S = 1.0
_HIT = "w=400,h=300,fit=fill,f=webp"


def measure_door(seconds: float) -> Outcome:
    """Cached images beside the bare deployment, then equal requests at once."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="broker-bench-")))
        (directory / "sources").mkdir()
        (directory / "sources/photograph.jpg").write_bytes(portrait_jpeg(4_000, 3_000))
        upstream, address = stack.enter_context(running_upstream(directory / "sources"))
        instance = stack.enter_context(running_images(address, with_bare=True))
        cached, missed = measure_cached(instance, directory, seconds)
        take_requests(upstream)
        made = instance.count("broker_images_total", outcome="made")
        figures = ask_at_once(instance, directory)
        figures["fetches"] = float(take_requests(upstream))
        figures["transforms"] = instance.count("broker_images_total", outcome="made") - made
        faults = missed + [
            f"{EQUAL} equal requests: {figures[name]:.0f} {name} instead of {wanted}"
            for name, wanted in (("failures", 0), ("fetches", 1), ("transforms", 1))
            if figures[name] != wanted
        ]
    return {"cached hit": cached, f"{EQUAL} equal requests at once": figures}, faults


def measure_cached(
    instance: ImageInstance, directory: Path, seconds: float
) -> tuple[dict[str, float], list[str]]:
    """Rates of a cached image and of a constant as large, in turns."""
    body_bytes = len(instance.get(_HIT, "photograph.jpg").content)
    ours = instance.request(_HIT, "photograph.jpg")
    rates: dict[str, list[float]] = {"bare": [], "broker": []}
    p99_ms: dict[str, list[float]] = {"bare": [], "broker": []}
    with open_load(instance.product.http_port) as load:
        for side, request in (("bare", bare_request(ours, f"/bare/200/{body_bytes}")), ("broker", ours)):
            (directory / f"{side}.json").write_text(json.dumps([request]))
            load.send(f"run {directory / side}.json {_CONNECTIONS} {_WARM_S}")
            load.receive()
        for turn in range(_ROUNDS):
            for side in ("bare", "broker") if turn % 2 == 0 else ("broker", "bare"):
                load.send(f"run {directory / side}.json {_CONNECTIONS} {seconds / _ROUNDS}")
                report = load.receive()
                if report["failures"]:
                    return {}, [f"cached hit, {side}: {report['first_failure'][-200:]}"]
                rates[side].append(report["replies"] / report["microseconds"] * 1e6)
                p99_ms[side].append(report["p99_us"] / 1_000)
    share = statistics.median(mine / bare for mine, bare in zip(rates["broker"], rates["bare"], strict=True))
    figures = {
        "bytes": float(body_bytes),
        "per_s": statistics.median(rates["broker"]),
        "bare_per_s": statistics.median(rates["bare"]),
        "share": share,
        "p99_ms": statistics.median(p99_ms["broker"]),
        "bare_p99_ms": statistics.median(p99_ms["bare"]),
    }
    missed = [f"cached hit: {share:.0%} of the bare deployment"] if share < LEAST_SHARE else []
    return figures, missed


def ask_at_once(instance: ImageInstance, directory: Path) -> dict[str, float]:
    """One request on each of so many connections, for an image that nobody has asked for."""
    file = directory / "equal.json"
    file.write_text(json.dumps([instance.request("w=800,h=600,f=webp", "photograph.jpg?n=equal")]))
    with open_load(instance.product.http_port) as load:
        load.send(f"publish {file} {EQUAL} {EQUAL} 0")
        report = load.receive()
    return {
        "replies": float(report["replies"]),
        "failures": float(report["failures"]),
        "last_ms": report["microseconds"] / 1_000,
    }
