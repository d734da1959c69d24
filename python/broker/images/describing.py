"""Describes an image, and what to paint before it has loaded.

BlurHash (https://github.com/woltapp/blurhash) and ThumbHash (https://evanw.github.io/thumbhash) are made of a
copy of 32 pixels: they hold no more, and their cost goes by the pixels that they are given.
"""

import base64

import pyvips

from broker._native import blur_hash, thumb_hash
from broker.images.decoding import CheckedImage, as_source, broken, load_options, srgb_options
from broker.images.jobs import Description

_COPY_SIDE_PX = 32
_COMPONENTS = 4  # of a BlurHash along the longer side; 3 along the other, as its authors advise
_SHADES = 8  # a channel, of the histogram of colours


def describe(checked: CheckedImage) -> Description:
    """What the image is; animations by their first frame.

    Raises:
        UnprocessableImage: it is damaged.
    """
    header = checked.header
    try:
        small = pyvips.Image.thumbnail_source(
            as_source(checked.data),
            _COPY_SIDE_PX,
            size="down",
            option_string=load_options(1),
            **srgb_options(header),
        ).colourspace("srgb")
        rgba = (small if small.hasalpha() else small.addalpha()).copy_memory()
        pixels = bytes(rgba.write_to_memory())
        opaque = bytes(rgba.flatten(background=[255, 255, 255]).addalpha().write_to_memory())
    except pyvips.Error as error:
        raise broken(error) from None
    shape = (rgba.width, rgba.height)
    across, down = (_COMPONENTS, _COMPONENTS - 1) if shape[0] >= shape[1] else (_COMPONENTS - 1, _COMPONENTS)
    return Description(
        header.type,
        header.size,
        header.frames,
        header.has_alpha,
        _frequent_color(pixels),
        blur_hash(opaque, shape, (across, down)),
        base64.b64encode(thumb_hash(pixels, shape)).decode(),
    )


def _frequent_color(pixels: bytes) -> str | None:
    """The mean of the fullest cell of a coarse histogram, transparent pixels left out."""
    cells: dict[tuple[int, ...], list[bytes]] = {}
    for at in range(0, len(pixels), 4):
        if pixels[at + 3] >= 128:
            color = pixels[at : at + 3]
            cells.setdefault(tuple(part * _SHADES >> 8 for part in color), []).append(color)
    if not cells:
        return None
    fullest = max(cells.values(), key=len)
    return "#" + "".join(f"{sum(parts) // len(fullest):02x}" for parts in zip(*fullest, strict=True))
