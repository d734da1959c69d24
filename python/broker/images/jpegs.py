"""Reads and writes JPEGs of moderate size by Pillow, which takes less time than libvips for the same bytes.

Both call libjpeg, with the same parameters, and what they decode is equal. Pillow calls it for the whole
image in one thread; libvips does so for strips of a few lines, between which two threads change. It also
has mozjpeg, which encodes more slowly than libjpeg-turbo (docs/decisions.md has the figures). What Pillow has
decoded is resized by native code, which need not build a pipeline for it and takes a third of the time.

libvips stays the judge: it has read the header of whatever comes here, and what Pillow does not take, libvips
reads or refuses. That is what has other colours than RGB and grey, what has several scans, which only libvips
bounds, and what is too large to be held whole, as Pillow does and libvips does not.
"""

import importlib
import io
from typing import Any

import pyvips
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from broker._native import resize_pixels

MOST_PIXELS = 4_000_000
"""That are held whole: 16 MB by Pillow, which has four bytes of each, and 12 MB by libvips."""
_HEADER_READS = 400
"""Before the pixels, some four for each segment: Pillow reads segments in Python, and copies what it has of
Exif for each one more, so that 80,000 of them took 0.3 s, nearly three times as long as 40,000."""
_MOST_SIDE_PX = 65_500  # libjpeg's own limit
_MODES = {3: "RGB", 1: "L"}
_FULL_COLOR_FROM = 90  # a quality, from which libvips' encoder does not halve the resolution of colours
_REFUSALS = (OSError, SyntaxError, ValueError)  # what Pillow raises for an image, truncated or too large
_LATE_MODULES = ("PIL.ImageOps", "PIL.TiffImagePlugin")  # the second one reads Exif


def load_pillow() -> None:
    """Load what Pillow loads with the first image: 7 MB that the forks of this process then share."""
    Image.preinit()
    for name in _LATE_MODULES:
        importlib.import_module(name)


def decode_jpeg(data: bytes | memoryview, shrink: int) -> Any | None:
    """A JPEG as its decoder shrinks it by 2, 4 or 8; without its orientation, with its profile.

    What is over at the right and at the bottom is left out.

    Returns:
        libvips' image in memory; None for what libvips shall read.
    """
    decoded = _decode(data, shrink)
    if decoded is None:
        return None
    image = _as_libvips(decoded, decoded.tobytes(), decoded.size)
    wanted = decoded.encoded_size[0] // shrink, decoded.encoded_size[1] // shrink
    return image if decoded.size == wanted else image.crop(0, 0, *wanted)


def scale_jpeg(data: bytes | memoryview, shrink: int, target: tuple[int, int]) -> Any | None:
    """A JPEG as its decoder shrinks it, and then a filter to the width and height of `target`.

    Returns:
        As `decode_jpeg` does.
    """
    decoded = _decode(data, shrink)
    return None if decoded is None else _as_libvips(decoded, _scale(decoded, shrink, target), target)


def encode_jpeg(image: Any, quality: int, *, has_own_tables: bool) -> bytes | None:
    """A JPEG with the image's profile and no other metadata.

    Args:
        image: libvips'; sRGB or grey.
        has_own_tables: whether its Huffman tables are made for it, which takes a pass more.

    Returns:
        None for what libvips shall write. Nothing has been read of it then, which can be done only once.
    """
    mode = _MODES.get(image.bands)
    size = image.width, image.height
    is_moderate = size[0] * size[1] <= MOST_PIXELS and max(size) <= _MOST_SIDE_PX
    if mode is None or image.format != "uchar" or not is_moderate:
        return None
    profile = image.get("icc-profile-data") if image.get_typeof("icc-profile-data") else None
    pixels = Image.frombuffer(mode, size, image.write_to_memory(), "raw", mode, 0, 1)
    return _encode(pixels, quality, profile, has_own_tables=has_own_tables)


def shrink_jpeg(
    data: bytes | memoryview, shrink: int, target: tuple[int, int], quality: int, *, has_own_tables: bool
) -> bytes | None:
    """A JPEG of another one, scaled as by `scale_jpeg`; no pixel passes libvips.

    Args:
        data: without orientation and profile.

    Returns:
        None for what libvips shall read or write.
    """
    decoded = _decode(data, shrink)
    if decoded is None:
        return None
    if _is_scaled(decoded, shrink, target):
        decoded.info.clear()  # a comment, which Pillow would write again
        return _encode(decoded, quality, None, has_own_tables=has_own_tables)
    mode = decoded.mode
    pixels = Image.frombuffer(mode, target, _scale(decoded, shrink, target), "raw", mode, 0, 1)
    return _encode(pixels, quality, None, has_own_tables=has_own_tables)


def _decode(data: bytes | memoryview, shrink: int) -> "_Shrunk | None":
    try:
        reader = _Reader(data, _HEADER_READS)
        shrunk = _Shrunk(reader)  # type: ignore[arg-type]  # it reads, seeks and tells
        reader.unbind()
        # A scan may be a pass over all pixels. Behind one that has all components libjpeg reads no other. The
        # last that was read are its parameters, whose first byte is how many it has (ITU-T T.81, B.2.3).
        if reader.last_read[:1] != bytes([shrunk.layers]):
            return None
        shrunk.encoded_size = width, height = shrunk.size
        wanted = width // shrink, height // shrink
        if shrunk.mode not in _MODES.values() or "progressive" in shrunk.info:
            return None
        if not 0 < wanted[0] * wanted[1] <= MOST_PIXELS:
            return None
        shrunk.draft(None, wanted)
        if shrunk.size != (-(-width // shrink), -(-height // shrink)):
            return None
        shrunk.load()
    except _REFUSALS:
        return None
    return shrunk


def _is_scaled(decoded: "_Shrunk", shrink: int, target: tuple[int, int]) -> bool:
    """Whether the decoder has left nothing to the filter."""
    return decoded.encoded_size == (shrink * target[0], shrink * target[1])


def _scale(decoded: "_Shrunk", shrink: int, target: tuple[int, int]) -> bytes:
    pixels = decoded.tobytes()
    if _is_scaled(decoded, shrink, target):
        return pixels
    # What the decoder makes of a side that `shrink` does not divide is a part of a pixel too long.
    part = decoded.encoded_size[0] / shrink, decoded.encoded_size[1] / shrink
    return resize_pixels(pixels, len(decoded.getbands()), decoded.size, part, target)


def _as_libvips(decoded: "_Shrunk", pixels: bytes, size: tuple[int, int]) -> Any:
    # Of three bands of bytes libvips makes sRGB, of one grey.
    image = pyvips.Image.new_from_memory(pixels, *size, len(decoded.getbands()), "uchar")
    # `copy_memory` of an image over bytes is one over the same bytes, which it does not keep alive. That of a
    # copy has bytes of its own.
    image = image.copy()
    profile = decoded.info.get("icc_profile")
    if profile:
        image.set_type(pyvips.GValue.blob_type, "icc-profile-data", profile)
    return image


def _encode(pixels: Image.Image, quality: int, profile: bytes | None, *, has_own_tables: bool) -> bytes:
    try:
        return _save(pixels, quality, profile, has_own_tables=has_own_tables)
    except OSError:
        # With tables of its own an image may have no more bytes than pixels. Noise has, and gains little.
        if not has_own_tables:
            raise
        return _save(pixels, quality, profile, has_own_tables=False)


def _save(pixels: Image.Image, quality: int, profile: bytes | None, *, has_own_tables: bool) -> bytes:
    written = io.BytesIO()
    pixels.save(
        written,
        "JPEG",
        quality=quality,
        subsampling="4:4:4" if quality >= _FULL_COLOR_FROM else "4:2:0",
        optimize=has_own_tables,
        icc_profile=profile,
    )
    return written.getvalue()


class _Shrunk(JpegImageFile):
    """A JPEG that is decoded smaller than it is encoded."""

    encoded_size = (0, 0)


class _Reader:
    """A file of bytes that are in memory already; `io.BytesIO` would copy them first."""

    def __init__(self, data: bytes | memoryview, most_reads: int) -> None:
        self._data = memoryview(data)
        self._at = 0
        self._reads_left: float = most_reads
        self.last_read = b""

    def unbind(self) -> None:
        """Allow any number of reads from now on."""
        self._reads_left = float("inf")

    def read(self, size: int = -1) -> bytes:
        """The next bytes, none at the end. Raises ValueError: there were too many reads."""
        self._reads_left -= 1
        if self._reads_left < 0:
            raise ValueError("too many segments")
        end = len(self._data) if size < 0 else self._at + size
        part = bytes(self._data[self._at : end])
        self._at += len(part)
        self.last_read = part
        return part

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._data)}[whence]
        self._at = max(0, start + offset)
        return self._at

    def tell(self) -> int:
        """The place."""
        return self._at
