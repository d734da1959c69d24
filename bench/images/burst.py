"""Callers who ask for face crops faster than they can be made, and hang up: CPU time and memory.

Nobody waits for their replies, so what they cost is what anybody can make the product spend.
"""

import socket
import tempfile
import time
from pathlib import Path

from bench.images.instance import ImageInstance, running_images, running_upstream
from bench.images.photographs import portrait_jpeg
from bench.report import Medians
from bench.scenes import Outcome
from broker.heap import EVERY_S

CALLERS = (50, 100, 200, 400, 800)
QUICK_CALLERS = (10, 20)
_STAYS_S = 0.03
_LOOK_S = 1.0
_IDLE_CPU = 0.1  # of a core, that the parts take when there is nothing to do
_OPTIONS = "w=200,h=200,fit=face,f=webp"
_SOURCE = "portrait.jpg"


def measure_burst(callers: tuple[int, ...]) -> Outcome:
    """What each number of callers costs, one after the other with the same product."""
    with tempfile.TemporaryDirectory(prefix="broker-bench-") as directory:
        (Path(directory) / _SOURCE).write_bytes(portrait_jpeg(1600, 1200))
        with running_upstream(Path(directory)) as (_, address), running_images(address) as instance:
            instance.wait_for_faces(_SOURCE)
            scenes: dict[str, Medians] = {
                "burst, before": {f"{part}_MB": instance.unbacked_mb(part) for part in ("images", "faces")}
            }
            for count in callers:
                scenes[f"burst, {count} callers"] = _measure_callers(instance, count)
            return scenes, []


def _measure_callers(instance: ImageInstance, count: int) -> Medians:
    cpu_s = instance.cpu_s("images", "faces", "ingress")
    most = {"images": 0.0, "faces": 0.0}

    def look() -> None:
        for part in most:
            most[part] = max(most[part], instance.unbacked_mb(part))

    looked_s = time.monotonic()
    for at in range(count):
        request = instance.request(_OPTIONS, f"{_SOURCE}?salt=burst-{count}-{at}")
        with socket.create_connection(("127.0.0.1", instance.product.http_port)) as caller:
            caller.sendall(request.encode())
            time.sleep(_STAYS_S)
        if time.monotonic() > looked_s + _LOOK_S:
            look()
            looked_s = time.monotonic()
    _wait_until_idle(instance)
    spent_s = instance.cpu_s("images", "faces", "ingress") - cpu_s
    began_s = time.monotonic()
    instance.get(_OPTIONS, f"{_SOURCE}?salt=after-{count}")
    served_s = time.monotonic() - began_s
    look()
    time.sleep(2 * EVERY_S)
    return {
        "cpu_s": spent_s,
        "cpu_ms_per_caller": spent_s / count * 1_000,
        "next_image_ms": served_s * 1_000,
        **{f"{part}_most_MB": held for part, held in most.items()},
        **{f"{part}_later_MB": instance.unbacked_mb(part) for part in most},
    }


def _wait_until_idle(instance: ImageInstance) -> None:
    spent_s = instance.cpu_s("images", "faces")
    while True:
        time.sleep(_LOOK_S)
        before_s, spent_s = spent_s, instance.cpu_s("images", "faces")
        if spent_s - before_s < _IDLE_CPU * _LOOK_S:
            return
