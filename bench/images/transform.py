"""What one transformation costs: a photograph of 12 megapixels to 800 × 600, in CPU time, side by side."""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.child import Child
from bench.contenders import ROOT
from bench.images.photographs import portrait_jpeg
from bench.peers.install import CACHE, InstallError, ensure_peer
from bench.report import Medians
from bench.scenes import Outcome

SOURCE = (4_000, 3_000)
FORMATS = ("jpg", "webp")
DIRECT = "libvips, called directly"
OURS = "broker"
MOST = 1.1
"""Times the CPU of libvips called directly."""
SHARP = Path(__file__).parent / "contenders/sharp.cjs"


def measure_transform(images: int) -> Outcome:
    """Contender and format → CPU of one image, ms, and what it is of libvips called directly."""
    with tempfile.TemporaryDirectory(prefix="broker-bench-") as directory, ExitStack() as stack:
        file = Path(directory) / "photograph.jpg"
        file.write_bytes(portrait_jpeg(*SOURCE))
        contenders = {
            name: stack.enter_context(started(command)) for name, command in list_contenders().items()
        }
        scenes: dict[str, Medians] = {}
        for format_ in FORMATS:
            found = {name: run(child, file, format_, images) for name, child in contenders.items()}
            for name, (cpu_ms, size_bytes) in found.items():
                scenes[f"{name}, {format_}"] = {
                    "CPU_ms": cpu_ms,
                    "of_libvips": cpu_ms / found[DIRECT][0],
                    "bytes": size_bytes,
                }
    return scenes, []


def list_contenders() -> dict[str, Sequence[str | Path]]:
    """Name → command; one that cannot be installed is left out."""
    modules = {OURS: "ours", DIRECT: "direct", "Pillow": "pillow"}
    found: dict[str, Sequence[str | Path]] = {
        name: [sys.executable, "-m", f"bench.images.contenders.{module}"] for name, module in modules.items()
    }
    try:
        ensure_peer("sharp")
    except InstallError as error:
        print(f"sharp is missing: {error}")
    else:
        found["sharp"] = ["node", SHARP, CACHE / "sharp"]
        found["sharp, no fastShrinkOnLoad"] = ["node", SHARP, CACHE / "sharp", "careful"]
    return found


@contextmanager
def started(command: Sequence[str | Path]) -> Iterator[Child]:
    """A contender that is ready."""
    with Child(command, ROOT) as child:
        child.receive()
        yield child


def run(child: Child, file: Path, format_: str, images: int) -> tuple[float, float]:
    """CPU of one image, ms, and bytes of the result. The first two images warm and do not count."""
    for count in (2, images):
        child.send(f"run {file} {format_} {count}")
        reply = child.receive()
    return reply["cpu_s"] / images * 1_000, reply["bytes"]


def targets() -> dict[str, dict[str, float]]:
    """What must not be passed."""
    return {f"{OURS}, {format_}": {"of_libvips": MOST} for format_ in FORMATS}
