"""Face crops of photographs, judged in what came out."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyvips
from numpy.typing import NDArray

from bench.images_quality.judge import Judge, Seen, distance, find_wanted
from bench.report import Medians
from broker.images.decoding import check_image
from broker.images.faces.net import FaceNet
from broker.images.geometry import Box, Face, Point, Size, choose_face, crop_around
from broker.images.jobs import DecodeLimits
from broker.images.options import Options, parse_options
from broker.images.rendering import preview, render

SHAPES = ("w=400,h=400", "w=300,h=400", "w=600,h=300")
FITS = ("face", "face-and-shoulders")
_LIMITS = DecodeLimits()
_EARS = 0.1
"""By which a head is wider than the judge's box on each side, in heights of the box."""
_SAME = 0.5
"""Two boxes are one face when their centres are nearer than this share of the judge's box."""
_EDGE_PX = 2.0


@dataclass(frozen=True, slots=True)
class Crop:
    """One crop, judged.

    Attributes:
        is_right: whether it shows the face that is nearest to the centre.
        is_seen: whether the judge finds that face in the result.
        has_head: whether all of the head is in the frame, or what the source has of it.
        nose_error: of the nose from where the rule wants it, in heights of the judge's box; None where the
            crop had to shift, or the judge knows no noses.
    """

    photograph: str
    options: str
    is_right: bool
    is_seen: bool
    has_head: bool
    nose_error: float | None


def find_faces(net: FaceNet, body: bytes) -> tuple[Face, ...]:
    """The faces of a source, as the service finds them."""
    small = preview(check_image(body, _LIMITS))
    (faces,) = net.find([as_array(small.pixels, small.size)])
    return tuple(face.scaled(small.scale) for face in faces)


def judge_photograph(name: str, image: pyvips.Image, net: FaceNet, judge: Judge) -> list[Crop]:
    """All crops of one photograph; none where the judge sees no face."""
    body = bytes(image.pngsave_buffer(compression=1))
    size = Size(image.width, image.height)
    faces = find_faces(net, body)
    chosen = choose_face(faces, size)
    wanted = find_wanted(judge.look(as_pixels(image)), chosen.center if chosen else None, size)
    if wanted is None:
        return []
    asked = [f"{shape},fit={fit},f=png" for shape in SHAPES for fit in FITS]
    return [judge_crop(name, body, size, parse_options(options), faces, wanted, judge) for options in asked]


def judge_crop(
    name: str, body: bytes, size: Size, options: Options, faces: tuple[Face, ...], wanted: Seen, judge: Judge
) -> Crop:
    """One crop."""
    face = choose_face(faces, size)
    if face is None:
        return Crop(name, options.text(), is_right=False, is_seen=False, has_head=False, nose_error=None)
    box = crop_around(face, size, options)
    made = render(check_image(body, _LIMITS), options, faces)
    found = judge.look(as_pixels(pyvips.Image.new_from_buffer(made.body, "")))
    seen = find_wanted(found, None, made.size)
    return Crop(
        name,
        options.text(),
        is_right=distance(face.center, wanted.center) < _SAME * wanted.height,
        is_seen=seen is not None,
        has_head=has_head(box, wanted, size),
        nose_error=nose_error(seen, made.size) if seen and is_free(box, size) else None,
    )


def has_head(box: Box, face: Seen, size: Size) -> bool:
    """Whether a crop has all of the head that the source has."""
    left = max(0.0, face.left - _EARS * face.height)
    top = max(0.0, face.crown)
    right = min(size.width, face.right + _EARS * face.height)
    bottom = min(size.height, face.bottom)
    return (
        box.left <= left + _EDGE_PX
        and box.top <= top + _EDGE_PX
        and box.left + box.width >= right - _EDGE_PX
        and box.top + box.height >= bottom - _EDGE_PX
    )


def is_free(box: Box, size: Size) -> bool:
    """Whether a crop touches no edge of the source, so that it is where the rule wants it."""
    return (
        box.left > 0
        and box.top > 0
        and box.left + box.width < size.width
        and box.top + box.height < size.height
    )


def nose_error(face: Seen, size: Size) -> float | None:
    """How far the nose is from the middle of a result, in heights of the face."""
    if face.nose is None:
        return None
    return distance(face.nose, Point(size.width / 2, size.height / 2)) / face.height


def summarise(crops: Iterable[Crop]) -> Medians:
    """Shares and errors over crops."""
    kept = list(crops)
    errors = [crop.nose_error for crop in kept if crop.nose_error is not None]
    shares = {
        "right_face": [crop.is_right for crop in kept],
        "face_seen_again": [crop.is_seen for crop in kept],
        "head_in_frame": [crop.has_head for crop in kept],
    }
    figures: Medians = {"crops": float(len(kept))}
    figures |= {name: sum(claims) / len(claims) for name, claims in shares.items() if claims}
    if errors:
        figures |= {"nose_error_median": statistics.median(errors), "nose_error_most": max(errors)}
    return figures


def as_pixels(image: pyvips.Image) -> NDArray[np.uint8]:
    """(height, width, 3) uint8 RGB."""
    plain = image.flatten(background=255) if image.hasalpha() else image
    if plain.bands != 3:
        plain = plain.colourspace("srgb")
    return as_array(bytes(plain.write_to_memory()), Size(plain.width, plain.height))


def as_array(pixels: bytes, size: Size) -> NDArray[np.uint8]:
    """The same from bytes."""
    return np.frombuffer(pixels, np.uint8).reshape(size.height, size.width, 3)
