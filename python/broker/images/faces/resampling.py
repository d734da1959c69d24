"""Resizes small images with numpy alone, as input of the networks.

Shrinking averages whole blocks first, then interpolates between the nearest two pixels of each axis, so that
a shrunk face keeps its detail without moiré. Images are (height, width, 3) uint8 RGB.
"""

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]


def resize(pixels: Pixels, width: int, height: int) -> Pixels:
    """The image in another size, both sides at least 1."""
    pixels = _averaged(pixels, max(1, pixels.shape[0] // height), max(1, pixels.shape[1] // width))
    if pixels.shape[:2] == (height, width):
        return pixels
    rows = _interpolated(pixels.astype(np.float32), height)
    columns = _interpolated(rows.transpose(1, 0, 2), width).transpose(1, 0, 2)
    resized: Pixels = np.rint(columns).astype(np.uint8)
    return resized


def letterbox(pixels: Pixels, side: int) -> Pixels:
    """The image fitted into a square of `side`, at its top left corner; the rest is black.

    One pixel of the result is `max(height, width) / side` pixels of the image.
    """
    height, width = pixels.shape[:2]
    factor = side / max(height, width)
    fitted = resize(pixels, max(1, round(width * factor)), max(1, round(height * factor)))
    square: Pixels = np.zeros((side, side, 3), np.uint8)
    square[: fitted.shape[0], : fitted.shape[1]] = fitted
    return square


def set_back(pixels: Pixels, side: int) -> Pixels:
    """The image in half the size of `letterbox`, a quarter of `side` from the top and the left.

    A share `s` of this square is the share `2 * s - 0.5` of that one.
    """
    square: Pixels = np.zeros((side, side, 3), np.uint8)
    margin = side // 4
    square[margin : margin + side // 2, margin : margin + side // 2] = letterbox(pixels, side // 2)
    return square


def _averaged(pixels: Pixels, down: int, across: int) -> Pixels:
    """Blocks of `down` × `across` pixels made one; what is left over at the end is dropped."""
    if down == 1 and across == 1:
        return pixels
    height, width = pixels.shape[0] // down, pixels.shape[1] // across
    blocks = pixels[: height * down, : width * across].reshape(height, down, width, across, 3)
    averaged: Pixels = np.rint(blocks.mean(axis=(1, 3), dtype=np.float32)).astype(np.uint8)
    return averaged


def _interpolated(pixels: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """As many rows as asked for; a row stands for the middle of what it covers."""
    places = (np.arange(count, dtype=np.float32) + 0.5) * (pixels.shape[0] / count) - 0.5
    places = places.clip(0, pixels.shape[0] - 1)
    before = places.astype(np.intp)
    after = np.minimum(before + 1, pixels.shape[0] - 1)
    share = (places - before).astype(np.float32)[:, None, None]
    mixed: NDArray[np.float32] = pixels[before] * (1 - share) + pixels[after] * share
    return mixed
