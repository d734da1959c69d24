"""Turns the bytes of one image into those of another, with libvips.

An image is cut, resized, and padded as its layout says. Shrinking happens while decoding where the format
allows it, so a large photograph is never held whole; only what is enlarged is cut first. Pixels become sRGB,
and transparency is taken out of the colours while resizing. Of animations each frame is treated alike.
"""

from dataclasses import dataclass
from typing import Any

import pyvips

from broker.images.decoding import (
    CheckedImage,
    DecodedFrame,
    Header,
    as_source,
    broken,
    load_options,
    open_image,
    srgb_options,
)
from broker.images.errors import UnprocessableImage
from broker.images.geometry import (
    Box,
    Face,
    Layout,
    Size,
    choose_face,
    crop_around,
    largest_of_aspect,
    lay_out,
    target_size,
)
from broker.images.jpegs import encode_jpeg, shrink_jpeg
from broker.images.options import Format, Options

PREVIEW_SIDE_PX = 640  # detectors see no more
_ATTENTION_SIDE_PX = 256  # libvips looks for it in 32 pixels
_JPEG_SHRINKS = (8, 4, 2)  # what libjpeg can do
_JPEG_SHRINKS_FROM = ((12.0, 8), (4.95, 4), (3.0, 2))
"""From how much shrinking on a JPEG's decoder does how much of it. It averages blocks, which shows where
nothing comes after it: fine lines get moiré. With so much left to the filter, photographs lose 0.1 dB of a
JPEG of quality 85, at most 1.5, and pure texture, such as grass, 2 dB (docs/decisions.md)."""
_JPEG_SHRINKS_FAST_FROM = ((8.0, 8), (4.0, 4), (2.0, 2))
"""The same where the operator has chosen speed: all that the decoder can do, as in imgproxy and thumbor. It
costs photographs 0.7, 0.8 and 1.8 dB at 2, 4 and 8, and fine lines get moiré (docs/decisions.md)."""
_MOST_PADDING_PX = 12  # brings the filter's grid to within a tenth of a pixel of the corner
_OWN_TABLES_BELOW_PX = 400_000
"""Of a JPEG. Huffman tables of its own save 9 % of a photograph of 100 pixels and 1.3 % of one of 800, which
takes 7 % more CPU for them."""
_ANIMATED = frozenset({Format.GIF, Format.WEBP})
_WEBP_SIDE_PX = 16_383  # the format's own limit


@dataclass(frozen=True, slots=True)
class Preview:
    """A small copy of the first frame, for detectors.

    Attributes:
        pixels: `(height, width, 3)` uint8 sRGB, row-major, on white.
        scale: pixels of the source in one of the preview.
    """

    size: Size
    pixels: bytes
    scale: float


@dataclass(frozen=True, slots=True)
class Rendered:
    """A finished image."""

    body: bytes
    format: Format
    size: Size


def preview(checked: CheckedImage, side_px: int = PREVIEW_SIDE_PX) -> Preview:
    """The first frame, fitted into a square of `side_px`, never enlarged.

    Raises:
        UnprocessableImage: it is damaged.
    """
    try:
        return _preview(checked, side_px)
    except pyvips.Error as error:
        raise broken(error) from None


def render(checked: CheckedImage, options: Options, faces: tuple[Face, ...]) -> Rendered:
    """The image that the options ask for.

    Args:
        faces: in pixels of the source; only for face modes, where none means an attention crop.

    Raises:
        UnprocessableImage: it is damaged, or the output format cannot hold it.
    """
    header = checked.header
    format_ = options.format or header.format
    try:
        layout = _layout(checked, options, faces)
        _check_output(format_, layout.result)
        made = _shrink_alone(checked, layout, format_, options.quality)
        if made is not None:
            return Rendered(made, format_, layout.result)
        frames = header.frames if format_ in _ANIMATED else 1
        image = _colored(_cut_and_scale(checked, layout, frames))
        image = _place(image, layout, frames)
        return Rendered(_encode(image, format_, options.quality), format_, layout.result)
    except pyvips.Error as error:
        raise broken(error) from None


def jpeg_shrink(factor: float, *, is_fast: bool = False) -> int:
    """How much of the shrinking by `factor` a JPEG's decoder may do."""
    steps = _JPEG_SHRINKS_FAST_FROM if is_fast else _JPEG_SHRINKS_FROM
    return next((step for at_least, step in steps if at_least <= factor), 1)


def preview_shrink(header: Header, side_px: int = PREVIEW_SIDE_PX) -> int:
    """The same for the preview of a JPEG, which needs no finest detail."""
    sides = header.size.width, header.size.height
    least = min(max(sides) / side_px, *sides)  # of a line of pixels the decoder leaves nothing
    return next((step for step in _JPEG_SHRINKS if step <= least), 1)


def _layout(checked: CheckedImage, options: Options, faces: tuple[Face, ...]) -> Layout:
    header = checked.header
    if not options.fit.is_face:
        return lay_out(header.size, options)
    face = choose_face(faces, header.size) if header.frames == 1 else None
    if face is not None:
        return Layout(crop_around(face, header.size, options), target_size(options))
    return Layout(_attention(checked, target_size(options)), target_size(options))


def _attention(checked: CheckedImage, target: Size) -> Box:
    """The largest part of the target's aspect that holds what draws the eye, by libvips' saliency."""
    header = checked.header
    is_upright = header.orientation == 1
    if checked.frame is not None:
        small = checked.frame.image.thumbnail_image(_ATTENTION_SIDE_PX, size="down", no_rotate=is_upright)
    else:
        small = pyvips.Image.thumbnail_source(
            as_source(checked.data),
            _ATTENTION_SIDE_PX,
            size="down",
            option_string=load_options(1),
            no_rotate=is_upright,
        )
    kept = largest_of_aspect(Size(small.width, small.height), target)
    found = small.copy_memory().smartcrop(kept.width, kept.height, interesting="attention")
    scale = header.size.width / small.width
    cut = largest_of_aspect(header.size, target)
    left = min(round(-found.xoffset * scale), header.size.width - cut.width)
    top = min(round(-found.yoffset * scale), header.size.height - cut.height)
    return Box(left, top, cut.width, cut.height)


def _preview(checked: CheckedImage, side_px: int) -> Preview:
    image = _without_alpha(_colored(_fitted_small(checked, side_px)))
    return Preview(
        Size(image.width, image.height),
        bytes(image.write_to_memory()),
        checked.header.size.width / image.width,
    )


def _fitted_small(checked: CheckedImage, side_px: int) -> Any:
    """A small copy for eyes that need no finest detail: of a JPEG its decoder makes most of the way."""
    header = checked.header
    is_upright = header.orientation == 1
    if checked.frame is not None:
        image = checked.frame.image
    elif header.type == "image/jpeg":
        image = checked.open_shrunk(preview_shrink(header, side_px))
    else:
        return pyvips.Image.thumbnail_source(
            as_source(checked.data),
            side_px,
            size="down",
            option_string=load_options(1),
            **srgb_options(header),
        )
    return image.thumbnail_image(side_px, size="down", no_rotate=is_upright, **srgb_options(header))


def _shrink_jpeg(checked: CheckedImage, target: Size, shrink: int) -> Any:
    """A smaller JPEG of RGB or grey, most of the way by its decoder, the rest by a filter."""
    header = checked.header
    size = header.size
    if header.orientation >= 5:  # the first row is a side
        size, target = Size(size.height, size.width), Size(target.height, target.width)
    frame = checked.frame
    if frame is not None and frame.shrink <= shrink:
        image = _filter(frame, size, target)
    else:
        image = checked.scale_jpeg(shrink, target)
        if image is None:
            image = _filter(DecodedFrame(checked.open_shrunk(shrink), shrink), size, target)
    if not header.is_srgb:  # as late as here there are few pixels to convert
        image = image.icc_transform("srgb", embedded=True, input_profile="srgb")
    return image if header.orientation == 1 else image.copy_memory().autorot()


def _filter(frame: DecodedFrame, size: Size, target: Size) -> Any:
    """A frame of an image of `size` in another size, by libvips, which makes only what is wanted of it."""
    image = frame.image
    across = size.width / frame.shrink / target.width
    down = size.height / frame.shrink / target.height
    if (across, down) != (1, 1):
        right = _padding(image.width, across, target.width)
        bottom = _padding(image.height, down, target.height)
        if right or bottom:
            image = image.embed(0, 0, image.width + right, image.height + bottom, extend="copy")
        image = image.reduce(across, down).crop(0, 0, target.width, target.height)
    return image


def _shrink_alone(checked: CheckedImage, layout: Layout, format_: Format, quality: int) -> bytes | None:
    """A smaller JPEG of a whole one, which needs no libvips; None where there is more to do."""
    header, size = checked.header, layout.scaled
    is_whole = layout.cut == Box(0, 0, header.size.width, header.size.height) and layout.result == size
    is_plain = header.type == "image/jpeg" and header.is_srgb and header.orientation == 1
    if format_ is not Format.JPEG or not is_whole or not is_plain or checked.frame is not None:
        return None
    least = min(header.size.width / size.width, header.size.height / size.height)
    shrink = jpeg_shrink(least, is_fast=checked.shrinks_fast)
    if shrink == 1:
        return None
    target = size.width, size.height
    return shrink_jpeg(checked.data, shrink, target, quality, has_own_tables=_has_own_tables(size))


def _padding(side_px: int, factor: float, wanted_px: int) -> int:
    """How many pixels more let a side begin where it should when it is divided by `factor`.

    libvips shares what does not divide evenly between both ends, by which all would be shifted.
    """

    def miss(padding: int) -> float:
        made = round((side_px + padding) / factor)
        return abs(made * factor - side_px - padding) if made >= wanted_px else factor

    return min(range(_MOST_PADDING_PX), key=miss)


def _cut_and_scale(checked: CheckedImage, layout: Layout, frames: int) -> Any:
    """The part that is kept, in its size; of animations all frames below each other."""
    header, cut, scaled = checked.header, layout.cut, layout.scaled
    if scaled.width > cut.width or scaled.height > cut.height:
        return _enlarge(checked, layout, frames)
    # The whole image, as large as it is when the part has its size; decoders shrink on the way.
    whole = Size(
        max(scaled.width, round(header.size.width * scaled.width / cut.width)),
        max(scaled.height, round(header.size.height * scaled.height / cut.height)),
    )
    image = _shrink(checked, whole, frames)
    left = min(round(cut.left * scaled.width / cut.width), whole.width - scaled.width)
    top = min(round(cut.top * scaled.height / cut.height), whole.height - scaled.height)
    return _crop_frames(image, Box(left, top, scaled.width, scaled.height), frames)


def _shrink(checked: CheckedImage, whole: Size, frames: int) -> Any:
    """The whole image in another size, none of whose sides is longer."""
    header = checked.header
    least = min(header.size.width / whole.width, header.size.height / whole.height)
    shrink = jpeg_shrink(least, is_fast=checked.shrinks_fast)
    if header.type == "image/jpeg" and (header.is_srgb or header.is_rgb) and shrink > 1:
        return _shrink_jpeg(checked, whole, shrink)
    if checked.frame is not None and checked.frame.shrink == 1:
        return checked.frame.image.thumbnail_image(
            whole.width, height=whole.height, size="force", **srgb_options(header)
        )
    return pyvips.Image.thumbnail_source(
        as_source(checked.data),
        whole.width,
        height=whole.height,
        size="force",
        option_string=load_options(frames),
        **srgb_options(header),
    )


def _enlarge(checked: CheckedImage, layout: Layout, frames: int) -> Any:
    header = checked.header
    if checked.frame is not None and checked.frame.shrink == 1:
        image = checked.frame.image
    else:
        access = "sequential" if header.orientation == 1 and frames == 1 else "random"
        image = open_image(checked.data, load_options(frames), access)
    if header.orientation != 1:
        image = image.autorot()
    image = _crop_frames(image, layout.cut, frames)
    return image.thumbnail_image(
        layout.scaled.width,
        height=layout.scaled.height,
        size="force",
        no_rotate=True,
        **srgb_options(header),
    )


def _crop_frames(image: Any, box: Box, frames: int) -> Any:
    height = image.height // frames
    if (box.width, box.height) == (image.width, height):
        return image
    if frames == 1:
        return image.crop(box.left, box.top, box.width, box.height)
    image = image.copy_memory()  # frames are read out of order
    kept = [image.crop(box.left, at * height + box.top, box.width, box.height) for at in range(frames)]
    return _joined(kept, box.height)


def _place(image: Any, layout: Layout, frames: int) -> Any:
    """Put each frame on a transparent canvas."""
    canvas = layout.canvas
    if canvas is None or canvas == layout.scaled:
        return image
    if not image.hasalpha():
        image = image.addalpha()
    left, top = layout.offset
    if frames == 1:
        return image.embed(
            left, top, canvas.width, canvas.height, extend="background", background=[0, 0, 0, 0]
        )
    image = image.copy_memory()
    height = image.height // frames
    placed = [
        image.crop(0, at * height, image.width, height).embed(
            left, top, canvas.width, canvas.height, extend="background", background=[0, 0, 0, 0]
        )
        for at in range(frames)
    ]
    return _joined(placed, canvas.height)


def _joined(frames: list[Any], height: int) -> Any:
    joined = pyvips.Image.arrayjoin(frames, across=1).copy()
    joined.set_type(pyvips.GValue.gint_type, "page-height", height)
    return joined


def _without_alpha(image: Any) -> Any:
    return image.flatten(background=[255, 255, 255]) if image.hasalpha() else image


def _colored(image: Any) -> Any:
    """The image as sRGB; of what comes here only grey is not."""
    return image if image.interpretation == "srgb" else image.colourspace("srgb")


def _check_output(format_: Format, size: Size) -> None:
    if format_ is Format.WEBP and max(size.width, size.height) > _WEBP_SIDE_PX:
        raise UnprocessableImage(f"WebP cannot hold an image with a side of over {_WEBP_SIDE_PX} pixels")


def _has_own_tables(size: Size) -> bool:
    return size.width * size.height < _OWN_TABLES_BELOW_PX


def _encode(image: Any, format_: Format, quality: int) -> bytes:
    match format_:
        case Format.JPEG:
            has_own_tables = _has_own_tables(Size(image.width, image.height))
            image = _without_alpha(image)
            made = encode_jpeg(image, quality, has_own_tables=has_own_tables)
            if made is not None:
                return made
            body = image.jpegsave_buffer(Q=quality, optimize_coding=has_own_tables, keep="icc")
        case Format.PNG:
            body = image.pngsave_buffer(keep="icc")
        case Format.GIF:
            body = image.gifsave_buffer(keep="icc")
        case Format.WEBP:
            body = image.webpsave_buffer(Q=quality, keep="icc")
        case Format.JSON:
            raise AssertionError("a description is not an image")
    return bytes(body)
