"""`python -m bench images [PART …] [--runs N] [--seconds S] [--requests N] [--quick]`: images."""

import argparse
import subprocess
from functools import partial

from bench.contenders import ROOT
from bench.images import burst, crop, transform
from bench.images.burst import measure_burst
from bench.images.crop import measure_crop
from bench.images.door import measure_door
from bench.images.gpu import measure_gpu
from bench.images.memory import CHUNKS, measure_memory
from bench.images.servers import measure_servers
from bench.images.transform import measure_transform
from bench.scenes import measure_scenes

_QUICK_S = 2.0
_IMAGES, _QUICK_IMAGES = 30, 4


def main(words: list[str]) -> int:
    """Run what the command line asks for; 1 when a target is missed or something goes wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench images", description="Images, side by side.")
    parser.add_argument("parts", nargs="*", metavar="PART", help="only these: " + ", ".join(PARTS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="of a round with a server")
    parser.add_argument("--requests", type=int, default=20_000, help="of the part memory")
    parser.add_argument("--quick", action="store_true", help="one short run: does it work, not how fast")
    arguments = parser.parse_args(words)
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    build = ["cargo", "build", "--release", "--quiet", "--example", "http_load"]
    subprocess.run(build, cwd=ROOT, check=True)
    is_quick = arguments.quick
    images = _QUICK_IMAGES if is_quick else _IMAGES
    seconds = _QUICK_S if is_quick else arguments.seconds
    acts = {
        "transform": partial(measure_transform, images),
        "servers": partial(measure_servers, seconds),
        "door": partial(measure_door, seconds),
        "crop": partial(measure_crop, images),
        "memory": partial(measure_memory, 5 * CHUNKS if is_quick else arguments.requests),
        "burst": partial(measure_burst, burst.QUICK_CALLERS if is_quick else burst.CALLERS),
        "gpu": partial(measure_gpu, images),
    }
    targets = {} if is_quick else transform.targets() | crop.targets()
    chosen = {name: act for name, act in acts.items() if not arguments.parts or name in arguments.parts}
    return measure_scenes("images", 1 if is_quick else arguments.runs, chosen, targets)


PARTS = ("transform", "servers", "door", "crop", "memory", "burst", "gpu")
