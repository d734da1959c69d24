"""Photographs out of packages; none is kept in the repository."""

from importlib.resources import files
from pathlib import Path

import numpy as np
import pyvips
import skimage.data
from numpy.typing import NDArray

from bench.contenders import ROOT

FACE_API = ROOT / ".build/faces/node_modules/@vladmandic/face-api/demo"
"""Where `make build` puts the npm package of the models."""
_GRAIN = 4.0
"""Standard deviation of the noise of an enlarged photograph, of 255: a camera's, so JPEG has work to do."""
_SEED = 7


def astronaut() -> pyvips.Image:
    """Eileen Collins, by NASA (public domain), 512 × 512."""
    return from_array(skimage.data.astronaut())


def from_array(pixels: NDArray[np.uint8]) -> pyvips.Image:
    """(height, width, 3) uint8 sRGB as libvips has it."""
    height, width, bands = pixels.shape
    image = pyvips.Image.new_from_memory(np.ascontiguousarray(pixels).data, width, height, bands, "uchar")
    return image.copy(interpretation="srgb")


def portrait_jpeg(width: int, height: int, quality: int = 90) -> bytes:
    """The upper part of the astronaut as a camera would have taken it at this size; one face."""
    enlarged = astronaut().resize(max(width / 512, height / 512), kernel="cubic")
    cut = enlarged.crop((enlarged.width - width) // 2, 0, width, height)
    pyvips.voperation.vips_lib.vips_concurrency_set(1)
    noise = pyvips.Image.gaussnoise(width, height, mean=0, sigma=_GRAIN, seed=_SEED)
    return bytes((cut + noise).cast("uchar").copy(interpretation="srgb").jpegsave_buffer(Q=quality))


def portrait_png(width: int, height: int) -> bytes:
    """The same part without noise, which PNG would keep: of 12 megapixels it makes 17 MB."""
    enlarged = astronaut().resize(max(width / 512, height / 512), kernel="cubic")
    return bytes(enlarged.crop((enlarged.width - width) // 2, 0, width, height).pngsave_buffer())


def list_people() -> dict[str, pyvips.Image]:
    """Name → photographs with faces: scikit-image's, insightface's and those of the npm package's demo."""
    found = {"astronaut": astronaut()}
    paths = [Path(str(files("insightface"))) / "data/images/t1.jpg", *sorted(FACE_API.glob("sample*.jpg"))]
    for path in paths:
        name = "friends" if path.stem == "t1" else path.stem
        found[name] = pyvips.Image.new_from_file(str(path)).copy_memory()
    return found
