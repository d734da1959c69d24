"""The requests and replies of decoder processes (`broker.images.child`), whose bytes `job_messages` has.

It is apart from the decoding, so that whoever asks loads no decoder.
"""

from dataclasses import dataclass
from typing import Literal

import msgspec

from broker.images.geometry import Face, Size
from broker.images.options import Format, Options


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """How large an image may be.

    Attributes:
        frame_pixels: of one frame; `total_pixels` of all.
        side_px: of a frame.
    """

    frame_pixels: int = 50_000_000
    total_pixels: int = 200_000_000
    frames: int = 500
    side_px: int = 65_535


class Description(msgspec.Struct, frozen=True):
    """What an image is.

    Attributes:
        type: media type of the source; `size` as it is seen.
        color: the most frequent colour, as `#rrggbb`; None of an image that is wholly transparent.
        thumbhash: base64, as its authors' decoders take it.
    """

    type: str
    size: Size
    frames: int
    has_alpha: bool
    color: str | None
    blurhash: str
    thumbhash: str


class Job(msgspec.Struct, frozen=True):
    """What to do with the bytes that follow.

    Attributes:
        options: of a preview those of the crop that comes next, for which the process may keep the image.
        number: under which a preview's image is kept, and a crop finds it; None to keep none.
        unwanted: numbers under which nobody will ask any more.
        unasked_pixels: that may be decoded without asking for room.
    """

    task: Literal["render", "preview", "describe"]  # of an animation there is no preview
    limits: DecodeLimits
    options: Options = msgspec.field(default_factory=Options)
    faces: tuple[Face, ...] = ()
    number: int | None = None
    unwanted: tuple[int, ...] = ()
    unasked_pixels: int = 0


class Planned(msgspec.Struct, frozen=True, tag=True):
    """How many pixels would be decoded; the parent answers when there is room for them."""

    pixels: int


class JobReply(msgspec.Struct, frozen=True, tag=True):
    """What came of a job; its result is beside it.

    Attributes:
        error: for whoever asked, and `log_text` for operators; None if all went well.
        size: of the result in pixels, and `scale` of a preview.
        is_kept: whether the process keeps the decoded image under the job's number.
        memory_bytes: the most that this process has held so far.
    """

    error: str | None = None
    log_text: str | None = None
    format: Format = Format.JSON
    size: Size = Size(0, 0)
    scale: float = 1.0
    is_kept: bool = False
    description: Description | None = None
    memory_bytes: int = 0
