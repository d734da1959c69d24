"""The requests and replies of decoder processes (`broker.images.child`).

It is apart from the decoding, so that whoever asks loads no decoder.
"""

import socket
from dataclasses import dataclass
from typing import Literal

import msgspec

from broker.images.geometry import Face, Size
from broker.images.options import Format, Options

MAX_RESULT_BYTES = 256 << 20  # an animation of 200 megapixels in GIF stays below

_LENGTH_BYTES = 8


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
    """

    task: Literal["render", "preview", "describe"]  # of an animation there is no preview
    limits: DecodeLimits
    options: Options = msgspec.field(default_factory=Options)
    faces: tuple[Face, ...] = ()
    number: int | None = None
    unwanted: tuple[int, ...] = ()


class Planned(msgspec.Struct, frozen=True, tag=True):
    """How many pixels would be decoded; the parent answers when there is room for them."""

    pixels: int


class JobReply(msgspec.Struct, frozen=True, tag=True):
    """What came of a job; the bytes of the result follow.

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


def send_result(over: socket.socket, body: bytes) -> None:
    """Send the bytes of a result, which the other end takes by `receive_result`. Blocks. Raises OSError."""
    over.sendall(len(body).to_bytes(_LENGTH_BYTES, "big"))
    over.sendall(body)


def receive_result(over: socket.socket, most_bytes: int) -> bytes:
    """The bytes of a result; blocks until all are there.

    The kernel puts them together. `Connection` does so in Python, for which 0.9 MB of pixels took 1.3 ms of
    CPU instead of 0.13 (medians of 200, in turns).

    Raises:
        EOFError: the other end is closed.
        OSError: they are more than `most_bytes`, or the socket fails.
    """
    size = int.from_bytes(_receive(over, _LENGTH_BYTES), "big")
    if size > most_bytes:
        raise OSError("the result is too long")
    return _receive(over, size)


def _receive(over: socket.socket, size: int) -> bytes:
    """So many bytes; a signal may cut a wait short, so there may be several."""
    parts: list[bytes] = []
    while size:
        part = over.recv(size, socket.MSG_WAITALL)
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
