"""What becomes of animations, as Pillow reads them: frames, delays, loops, and the likeness of each frame."""

import io
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import skimage.data
from numpy.typing import NDArray
from PIL import Image, ImageSequence

from bench.report import Medians
from broker.images.decoding import check_image
from broker.images.jobs import DecodeLimits
from broker.images.options import parse_options
from broker.images.rendering import render

OPTIONS = ("w=100,f=gif", "w=100,f=webp", "w=100,h=100,fit=fill,f=gif", "w=100,h=100,fit=fit,f=webp", "-")
_LIMITS = DecodeLimits()
_CANVAS = (255, 255, 255, 255)


def list_animations() -> dict[str, bytes]:
    """Name → a GIF: one out of scikit-image, and one that is drawn here."""
    (real,) = Path(skimage.data.__file__).parent.glob("no_time_for_that_tiny.gif")
    return {"scikit-image's": real.read_bytes(), "drawn": draw()}


def draw(frames: int = 12, side: int = 160) -> bytes:
    """A disc that goes round, shown three times; every frame lasts longer than the one before."""
    down, across = np.mgrid[:side, :side]
    drawn = []
    for number in range(frames):
        angle = 2 * math.pi * number / frames
        x, y = side / 2 + side / 3 * math.cos(angle), side / 2 + side / 3 * math.sin(angle)
        frame = np.full((side, side, 3), 240, np.uint8)
        frame[(across - x) ** 2 + (down - y) ** 2 < (side / 8) ** 2] = (200, 30 + 10 * number, 60)
        drawn.append(Image.fromarray(frame))
    made = io.BytesIO()
    delays = [40 + 10 * number for number in range(frames)]
    drawn[0].save(made, "GIF", save_all=True, append_images=drawn[1:], duration=delays, loop=3)
    return made.getvalue()


def judge_animation(source: bytes, text: str) -> Medians:
    """Whether one result has the frames, delays and loops of its source, and the likeness of its frames.

    The likeness is the signal-to-noise ratio, dB, of the worst frame beside Pillow's own resizing of it; only
    for results that show the whole source.
    """
    made = render(check_image(source, _LIMITS), parse_options(text), ()).body
    before, after = list(frames_of(source)), list(frames_of(made))
    figures = {
        "frames_kept": float(len(before) == len(after)),
        "delays_kept": float([delay for delay, _ in before] == [delay for delay, _ in after]),
        "loops_kept": float(loops_of(source) == loops_of(made)),
    }
    if "fit=fi" not in text:
        ratios = [likeness_db(ours, theirs) for (_, ours), (_, theirs) in zip(after, before, strict=False)]
        figures["worst_frame_dB"] = min(ratios)
    return figures


def frames_of(body: bytes) -> Iterator[tuple[int, Image.Image]]:
    """Delay in ms and image of each frame, on white."""
    with Image.open(io.BytesIO(body)) as opened:
        for frame in ImageSequence.Iterator(opened):
            shown = Image.new("RGBA", frame.size, _CANVAS)
            shown.alpha_composite(frame.convert("RGBA"))
            yield int(frame.info.get("duration", 0)), shown.convert("RGB")


def loops_of(body: bytes) -> int:
    """How often an animation is shown; 0 for ever."""
    with Image.open(io.BytesIO(body)) as opened:
        if opened.format == "GIF" and "loop" not in opened.info:
            return 1
        loop = int(opened.info["loop"])
        # GIF counts the repeats after the first showing, WebP the showings.
        return loop + 1 if opened.format == "GIF" and loop else loop


def likeness_db(ours: Image.Image, source: Image.Image) -> float:
    """Peak signal-to-noise ratio of a frame by the source's, resized by Pillow."""
    wanted = np.asarray(source.resize(ours.size, Image.Resampling.LANCZOS), np.float64)
    error: NDArray[np.float64] = (np.asarray(ours, np.float64) - wanted) ** 2
    return 10 * math.log10(255**2 / max(float(error.mean()), 0.01))
