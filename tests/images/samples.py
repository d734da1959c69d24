"""Images made on the spot."""

import math

import pyvips
from pyvips import GValue


def gradient(width: int, height: int, bands: int = 3) -> pyvips.Image:
    """Red grows to the right, green to the bottom; every place looks different."""
    places = pyvips.Image.xyz(width, height)
    planes = [places[0] * 255 / width, places[1] * 255 / height, places[0] * 0 + 128]
    if bands == 4:
        planes.append(places[0] * 255 / width)
    return planes[0].bandjoin(planes[1:]).cast("uchar").copy(interpretation="srgb")


def animation(width: int = 60, height: int = 40, frames: int = 6) -> pyvips.Image:
    """Frames that grow bluer, with a delay of their own each, shown three times."""
    drawn = [gradient(width, height).linear(1, [0, 0, 20 * at]).cast("uchar") for at in range(frames)]
    joined = pyvips.Image.arrayjoin(drawn, across=1).copy()
    joined.set_type(GValue.gint_type, "page-height", height)
    joined.set_type(GValue.array_int_type, "delay", [50 + 10 * at for at in range(frames)])
    joined.set_type(GValue.gint_type, "loop", 3)
    return joined


def turned(image: pyvips.Image, orientation: int) -> bytes:
    """A JPEG that asks to be turned, as telephones make them."""
    copy = image.copy()
    copy.set_type(GValue.gint_type, "orientation", orientation)
    return bytes(copy.jpegsave_buffer(Q=95))


def photograph(width: int, height: int) -> pyvips.Image:
    """What changes over some pixels, as photographs do."""
    noise = pyvips.Image.gaussnoise(width, height, sigma=780, mean=0, seed=3).gaussblur(6)
    return (gradient(width, height) + noise).cast("uchar").copy(interpretation="srgb")


def lines(width: int, height: int, period: float, angle: float) -> pyvips.Image:
    """Gray lines as fine as `period` pixels, turned by `angle` degrees."""
    places = pyvips.Image.xyz(width, height)
    turn = math.radians(angle)
    phase = (places[0] * math.cos(turn) + places[1] * math.sin(turn)) * (360 / period)
    plane = (phase.sin() * 120 + 127.5).cast("uchar")
    return plane.bandjoin([plane, plane]).copy(interpretation="srgb")


def decibels(one: pyvips.Image, other: pyvips.Image) -> float:
    """The peak ratio of signal to noise; infinite for equal images."""
    error = ((one - other) ** 2).avg()
    return 10 * math.log10(255**2 / error) if error else math.inf
