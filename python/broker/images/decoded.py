"""Decoded images that a decoder process keeps from the search for faces until the crop.

Both need the same photograph, at different sizes. Decoding it takes longest, so the preview's decoding is one
that the crop can probably use, too. Nothing is lost if it cannot: the crop then decodes the source itself.
"""

from collections.abc import Iterable

import pyvips

from broker.concurrency.caches import LruCache
from broker.images.decoding import CheckedImage, DecodedFrame, broken
from broker.images.geometry import least_face_shrink
from broker.images.options import Options
from broker.images.rendering import jpeg_shrink, preview_shrink

_WHOLE_PIXELS = 4_000_000
"""Of a JPEG that is decoded whole if need be. Of 12 megapixels that would take 104 ms, and their preview 22;
a preview by itself takes 59."""


class KeptFrames:
    """The frames that one process keeps, by the number of their request; the oldest goes first."""

    def __init__(self, most_bytes: int) -> None:
        """Keep none yet.

        Args:
            most_bytes: of all together.
        """
        self._most_bytes = most_bytes
        self._frames: LruCache[int, DecodedFrame] = LruCache(most_bytes, lambda frame: frame.size_bytes)

    def __len__(self) -> int:
        return len(self._frames)

    def decode(self, number: int, checked: CheckedImage, options: Options) -> CheckedImage:
        """The image, decoded and kept if a crop with these options can probably use that.

        Raises:
            UnprocessableImage: it is damaged.
        """
        shrink = _choose_shrink(checked, options)
        if shrink is None:
            return checked
        try:
            image = checked.open_shrunk(shrink)
            frame = DecodedFrame(image, shrink)
            if frame.size_bytes > self._most_bytes:
                return checked
            frame = DecodedFrame(image.copy_memory(), shrink)
        except pyvips.Error as error:
            raise broken(error) from None
        self._frames.put(number, frame)
        return checked.with_frame(frame)

    def take(self, number: int, checked: CheckedImage) -> CheckedImage:
        """The image with the frame of its request, which is kept no longer; as it was if there is none."""
        frame = self._frames.pop(number)
        return checked if frame is None else checked.with_frame(frame)

    def forget(self, numbers: Iterable[int]) -> None:
        """Drop the frames of these requests."""
        for number in numbers:
            self._frames.pop(number)

    def forget_all(self) -> None:
        """Drop all frames."""
        self.forget(list(self._frames))


def _choose_shrink(checked: CheckedImage, options: Options) -> int | None:
    """By how much a decoder may shrink the image for preview and crop; None to decode it for each."""
    header = checked.header
    if not options.fit.is_face or header.frames > 1 or not (header.is_srgb or header.is_rgb):
        return None
    if header.type != "image/jpeg":
        return 1
    least = least_face_shrink(header.size, options)
    shrink = min(jpeg_shrink(least, is_fast=checked.shrinks_fast), preview_shrink(header))
    return shrink if shrink > 1 or header.pixels <= _WHOLE_PIXELS else None
