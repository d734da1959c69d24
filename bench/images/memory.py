"""Whether memory stays flat over mixed requests: images, animations, faces, errors, repeats."""

import json
import random
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path

from bench.images.instance import ImageInstance, open_load, running_images, running_upstream
from bench.images.photographs import portrait_jpeg
from bench.report import Medians
from bench.scenes import Outcome
from tests.images.samples import animation, gradient

CHUNKS = 20
"""After each the memory is read. The first quarter fills caches and pools and does not count."""
GROWTH = 1.05
"""Of the last quarter, by the second one, without the pages of files. In PSS, which is told too, those grow
when a process elsewhere ends that had the same libraries open."""
_AT_A_TIME = 16
_SOURCES = 40
_SEED = 11
_SMALL_CACHE = str(8 << 20)
_OPTIONS = (
    "w=100,f=webp",
    "w=200,h=200,fit=fill,f=jpg",
    "w=300,h=200,fit=fit,f=png",
    "w=200,h=200,fit=face,f=jpg",
    "w=200,h=300,fit=face-and-shoulders,f=webp",
    "w=400,fit=scale",
    "w=100,h=100,fit=crop,f=gif",
    "f=json",
    "w=51",  # refused
)


def measure_memory(requests: int) -> Outcome:
    """Memory of the parts, at first and in the end."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="broker-bench-")))
        sources = directory / "sources"
        sources.mkdir()
        (sources / "portrait.jpg").write_bytes(portrait_jpeg(800, 600))
        (sources / "drawing.png").write_bytes(gradient(640, 480, 4).pngsave_buffer())
        (sources / "moving.gif").write_bytes(animation().gifsave_buffer())
        (sources / "broken.jpg").write_bytes(portrait_jpeg(400, 300)[:5_000])
        _, address = stack.enter_context(running_upstream(sources))
        # Small caches, so that they are full soon.
        settings = {"BROKER_IMAGES_CACHE_BYTES": _SMALL_CACHE, "BROKER_IMAGES_DISK_BYTES": str(64 << 20)}
        instance = stack.enter_context(running_images(address, settings))
        instance.wait_for_faces("portrait.jpg")
        load = stack.enter_context(open_load(instance.product.http_port))
        names = sorted(path.name for path in sources.iterdir())
        choose = random.Random(_SEED)
        sizes: dict[str, list[tuple[float, float]]] = {"images": [], "faces": []}
        overloaded = 0
        for chunk in range(CHUNKS):
            asked = [choose_request(choose, instance, names, chunk) for _ in range(requests // CHUNKS)]
            (directory / "asked.json").write_text(json.dumps(asked))
            load.send(f"publish {directory / 'asked.json'} {_AT_A_TIME} {len(asked)} 0")
            report = load.receive()
            overloaded += "503" in report["first_failure"]
            for part, found in sizes.items():
                found.append((instance.pss_mb(part), instance.unbacked_mb(part)))
    scenes = {f"memory, {part}": summarise(found) for part, found in sizes.items()}
    faults = [
        f"{scene}: {figures['growth']:.2f} times as much in the end"
        for scene, figures in scenes.items()
        if figures["growth"] > GROWTH and requests >= 1_000 * CHUNKS
    ]
    return scenes, faults + ([f"{overloaded} rounds were answered 503"] if overloaded else [])


def choose_request(choose: random.Random, instance: ImageInstance, names: list[str], chunk: int) -> str:
    """One of this chunk's images, or of the last one's, which may be cached."""
    salt = choose.randrange(max(0, chunk - 1), chunk + 1) * _SOURCES + choose.randrange(_SOURCES)
    return instance.request(choose.choice(_OPTIONS), f"{choose.choice(names)}?salt={salt}")


def summarise(sizes_mb: list[tuple[float, float]]) -> Medians:
    """What became of the memory, from PSS and what of it no file backs, after each chunk."""
    pss, unbacked = zip(*sizes_mb, strict=True)
    quarter = len(unbacked) // 4
    second, last = (
        statistics.median(unbacked[at : at + quarter]) for at in (quarter, len(unbacked) - quarter)
    )
    return {
        "first_MB": unbacked[0],
        "second_quarter_MB": second,
        "last_quarter_MB": last,
        "most_MB": max(unbacked),
        "most_PSS_MB": max(pss),
        "growth": last / second,
    }
