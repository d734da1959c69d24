"""Checks the header of an image before any pixel is decoded.

The type is read from the first bytes, never from a name or a header of HTTP. Then libvips reads the image's
own header, and sizes are judged; only an image that passes is decoded, by one of five loaders. All other
loaders are blocked: they read scripts, documents and rare formats.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyvips

from broker.images.errors import UnprocessableImage
from broker.images.geometry import Size
from broker.images.jobs import DecodeLimits
from broker.images.jpegs import decode_jpeg, scale_jpeg
from broker.images.options import Format

SourceBytes = bytes | memoryview
"""Of a source; in a decoder process they are mapped."""

_LOADERS = ("Jpeg", "Png", "Nsgif", "Webp", "Heif")
_STRICT = "fail_on=truncated"
_SRGB = frozenset({"srgb", "b-w"})  # libvips' names; of samples of 16 bits it has others
_PNG = b"\x89PNG\r\n\x1a\n"
_AVIF_BRANDS = frozenset({b"avif", b"avis"})
_BOX_BYTES = 64  # of a file's first box, where the brands stand; 12 brands at most are looked at
_GIF_IMAGE, _GIF_EXTENSION, _GIF_END = 0x2C, 0x21, 0x3B


@dataclass(frozen=True, slots=True)
class Header:
    """What an image says of itself.

    Attributes:
        format: that a re-encoding keeps: WebP for AVIF.
        type: media type of the source.
        size: as it is seen, after its orientation; of one frame.
        orientation: EXIF, 1 to 8; 1 for what needs no turning.
        frames: 1 for a still image.
        is_srgb: whether its samples are bytes of sRGB or grey, with no profile that says otherwise.
        is_rgb: whether its samples are bytes of RGB, whatever a profile says of them.
    """

    format: Format
    type: str
    size: Size
    orientation: int
    frames: int
    has_alpha: bool
    is_srgb: bool
    is_rgb: bool

    @property
    def pixels(self) -> int:
        """Of all frames."""
        return self.size.width * self.size.height * self.frames


@dataclass(frozen=True, slots=True)
class DecodedFrame:
    """The pixels of a still image.

    Attributes:
        image: libvips' image, as its loader gives it: with its orientation and its profile.
        shrink: by how much its decoder has shrunk it.
    """

    image: Any
    shrink: int

    @property
    def size_bytes(self) -> int:
        """In memory."""
        return int(self.image.width * self.image.height * self.image.bands)


@dataclass(frozen=True, slots=True)
class CheckedImage:
    """An image whose header has been judged.

    Attributes:
        data: its bytes.
        frame: its pixels, where they have been decoded already.
        shrinks_fast: whether a JPEG's decoder does as much of the shrinking as it can.
    """

    data: SourceBytes
    header: Header
    frame: DecodedFrame | None = None
    shrinks_fast: bool = False

    def open_shrunk(self, shrink: int) -> Any:
        """A still image; of a JPEG as its decoder shrinks it. It need not be decoded yet.

        What is over at the right and at the bottom is left out.
        """
        options = load_options(1)
        if shrink == 1:
            return open_image(self.data, options)
        decoded = decode_jpeg(self.data, shrink)
        if decoded is None:
            return open_image(self.data, f"{options[:-1]},shrink={shrink}]")
        return self._oriented(decoded)

    def scale_jpeg(self, shrink: int, target: Size) -> Any | None:
        """A JPEG in another size, before it is turned; None where libvips has to read it."""
        scaled = scale_jpeg(self.data, shrink, (target.width, target.height))
        return None if scaled is None else self._oriented(scaled)

    def _oriented(self, decoded: Any) -> Any:
        if self.header.orientation == 1:
            return decoded
        decoded = decoded.copy()
        decoded.set_type(pyvips.GValue.gint_type, "orientation", self.header.orientation)
        return decoded

    def with_frame(self, frame: DecodedFrame) -> "CheckedImage":
        """The same with its pixels."""
        return replace(self, frame=frame)


def check_image(data: SourceBytes, limits: DecodeLimits, *, shrinks_fast: bool = False) -> CheckedImage:
    """The image, once its header is found to be allowed. Raises UnprocessableImage."""
    return CheckedImage(data, read_header(data, limits), shrinks_fast=shrinks_fast)


def open_libvips() -> None:
    """Prepare libvips for this process: one thread an image, no cache, and no loader but ours."""
    pyvips.cache_set_max(0)
    pyvips.voperation.vips_lib.vips_concurrency_set(1)
    pyvips.operation_block_set("VipsForeignLoad", True)
    for loader in _LOADERS:
        pyvips.operation_block_set(f"VipsForeignLoad{loader}", False)


def read_header(data: SourceBytes, limits: DecodeLimits) -> Header:
    """What the image says of itself; decodes nothing.

    Raises:
        UnprocessableImage: no image of an allowed type, a broken header, or over a limit.
    """
    format_, type_ = _sniff(data)
    if format_ is Format.GIF:
        _check_gif_end(data)
    try:
        image = open_image(data, load_options(1))
        frames = _field(image, "n-pages", 1)
        orientation = _field(image, "orientation", 1) if frames == 1 else 1
        has_alpha = bool(image.hasalpha())
        is_srgb = image.interpretation in _SRGB and not image.get_typeof("icc-profile-data")
        is_rgb = image.interpretation == "srgb"
    except pyvips.Error as error:
        raise broken(error) from None
    turned = orientation >= 5  # EXIF 2.32, tag 274: the first row is a side
    size = Size(image.height, image.width) if turned else Size(image.width, image.height)
    header = Header(format_, type_, size, orientation, frames, has_alpha, is_srgb, is_rgb)
    _check(header, limits)
    return header


def open_image(data: SourceBytes, options: str, access: str = "sequential") -> Any:
    """What the bytes say, as libvips' image. They must live as long as it."""
    return pyvips.Image.new_from_source(as_source(data), options, access=access)


def as_source(data: SourceBytes) -> pyvips.Source:
    """Bytes where libvips reads them; as a buffer it would copy them first."""
    return pyvips.Source.new_from_memory(data)


def load_options(frames: int) -> str:
    """The option string for libvips' loaders: strict, and all frames or the first."""
    return f"[{_STRICT}]" if frames == 1 else f"[{_STRICT},n=-1]"


def srgb_options(header: Header) -> dict[str, str]:
    """What makes libvips' `thumbnail` convert to sRGB.

    Asked to convert what needs none, it goes through CIELAB all the same, which takes as long as decoding.
    """
    return {} if header.is_srgb else {"export_profile": "srgb"}


def broken(error: Exception) -> UnprocessableImage:
    """The error for an image that libvips gives up."""
    return UnprocessableImage("the image is damaged or incomplete", log_text=str(error)[:500])


def _field(image: Any, name: str, default: int) -> int:
    return int(image.get(name)) if image.get_typeof(name) else default


def _check(header: Header, limits: DecodeLimits) -> None:
    size = header.size
    if max(size.width, size.height) > limits.side_px:
        raise UnprocessableImage(f"the image has a side of over {limits.side_px} pixels")
    if size.width * size.height > limits.frame_pixels:
        raise UnprocessableImage(f"the image has over {limits.frame_pixels / 1e6:g} megapixels")
    if header.frames > limits.frames:
        raise UnprocessableImage(f"the animation has over {limits.frames} frames")
    if header.pixels > limits.total_pixels:
        raise UnprocessableImage(f"the animation has over {limits.total_pixels / 1e6:g} megapixels in all")


def _sniff(source: SourceBytes) -> tuple[Format, str]:
    data = bytes(source[:_BOX_BYTES])
    if data.startswith(b"\xff\xd8\xff"):
        return Format.JPEG, "image/jpeg"
    if data.startswith(_PNG):
        return Format.PNG, "image/png"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return Format.GIF, "image/gif"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return Format.WEBP, "image/webp"
    if data[4:8] == b"ftyp" and _AVIF_BRANDS & set(_brands(data)):
        return Format.WEBP, "image/avif"
    raise UnprocessableImage("the upstream's response is not a JPEG, PNG, GIF, WebP or AVIF image")


def _brands(data: bytes) -> Iterator[bytes]:
    """The major brand and the compatible ones (ISO/IEC 14496-12, section 4.3)."""
    end = min(int.from_bytes(data[:4], "big"), len(data))
    yield data[8:12]
    for start in range(16, end - 3, 4):
        yield data[start : start + 4]


def _check_gif_end(data: SourceBytes) -> None:
    """Refuse a GIF that stops in the middle of a block (GIF89a, section 12): libvips takes it as it is.

    The last byte, which only marks the end, may be missing; what follows it is ignored.
    """
    try:
        at = 13 + _gif_table_bytes(data[10])
        while at < len(data) and data[at] != _GIF_END:
            if data[at] == _GIF_EXTENSION:
                at += 2
            elif data[at] == _GIF_IMAGE:
                at += 11 + _gif_table_bytes(data[at + 9])
            else:
                raise UnprocessableImage("the image is damaged")
            while data[at]:
                at += 1 + data[at]
            at += 1
    except IndexError:
        raise UnprocessableImage("the image is truncated") from None


def _gif_table_bytes(packed: int) -> int:
    return 3 << ((packed & 7) + 1) if packed & 0x80 else 0
