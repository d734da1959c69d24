"""What an image is told to be, and that placeholders look like it when their libraries decode them."""

import base64
import json
import re
from importlib.util import find_spec
from pathlib import Path

import blurhash
import msgspec
import pytest
import pyvips
import thash

from broker.images.decoding import check_image
from broker.images.describing import describe
from broker.images.errors import UnprocessableImage
from broker.images.geometry import Face, Point
from broker.images.jobs import DecodeLimits, Description
from broker.images.service import _body
from tests.images.samples import animation, gradient, turned

PAGE = (Path(__file__).parents[2] / "docs" / "images.md").read_text()
LIMITS = DecodeLimits()


def told(data: bytes) -> Description:
    return describe(check_image(data, LIMITS))


def png(image: pyvips.Image) -> bytes:
    return bytes(image.pngsave_buffer())


def flat(width: int, height: int, *color: int) -> pyvips.Image:
    bands = pyvips.Image.black(width, height, bands=len(color)).linear(1, list(color))
    return bands.cast("uchar").copy(interpretation="srgb")


def photograph() -> bytes:
    """Eileen Collins, by NASA, in the public domain; a file of scikit-image."""
    spec = find_spec("skimage")
    assert spec is not None
    assert spec.origin is not None
    return (Path(spec.origin).parent / "data" / "astronaut.png").read_bytes()


def average(image: pyvips.Image, space: str = "srgb") -> list[float]:
    return [band.avg() for band in image.colourspace(space)[:3].bandsplit()]


def channels(color: str | None) -> list[int]:
    assert color is not None
    return [*bytes.fromhex(color.removeprefix("#"))]


def test_the_color_is_that_of_most_pixels() -> None:
    image = flat(300, 100, 200, 30, 40).insert(flat(100, 100, 20, 40, 220), 200, 0)
    assert channels(told(png(image)).color) == pytest.approx([200, 30, 40], abs=4)


def test_transparent_pixels_have_no_color() -> None:
    clear = flat(200, 200, 0, 255, 0, 0)
    image = clear.insert(flat(60, 60, 200, 30, 40, 255), 70, 70)
    found = told(png(image))
    assert found.has_alpha
    assert channels(found.color) == pytest.approx([200, 30, 40], abs=4)
    assert told(png(clear)).color is None


@pytest.mark.parametrize("image", [png(gradient(640, 360)), png(gradient(90, 240)), photograph()])
def test_placeholders_look_like_the_image(image: bytes) -> None:
    found, source = told(image), pyvips.Image.new_from_buffer(image, "")
    blurred = pyvips.Image.new_from_array(blurhash.decode(found.blurhash, 32, 32))
    # A BlurHash keeps the mean of light, a ThumbHash that of values.
    assert average(blurred, "scrgb") == pytest.approx(average(source, "scrgb"), abs=0.05)
    hashed = painted(found)
    assert average(hashed) == pytest.approx(average(source), abs=12)
    assert hashed.width / hashed.height == pytest.approx(found.size.width / found.size.height, rel=0.2)


def test_a_thumbhash_is_as_transparent_as_the_image() -> None:
    clear = flat(200, 100, 0, 0, 0, 0)
    image = clear.insert(flat(100, 100, 200, 30, 40, 255), 100, 0)
    hashed = painted(told(png(image)))
    left, right = (hashed.crop(at, 4, 4, hashed.height - 8) for at in (2, hashed.width - 6))
    assert left[3].avg() < 40
    assert right[3].avg() > 215
    assert average(right) == pytest.approx([200, 30, 40], abs=12)


def painted(found: Description) -> pyvips.Image:
    """A ThumbHash as overlays paint it."""
    hashed = base64.b64decode(found.thumbhash, validate=True)
    width, height, pixels = thash.thumb_hash_to_rgba(hashed)
    return pyvips.Image.new_from_memory(bytes(pixels), width, height, 4, "uchar").copy(interpretation="srgb")


def test_size_is_as_the_image_is_seen() -> None:
    found = told(turned(gradient(160, 120), 6))
    assert (found.type, found.size.width, found.size.height) == ("image/jpeg", 120, 160)


def test_an_animation_is_told_by_its_frames() -> None:
    found = told(bytes(animation(60, 40, 6).gifsave_buffer()))
    assert (found.type, found.size.width, found.size.height, found.frames) == ("image/gif", 60, 40, 6)


@pytest.mark.parametrize("side", [(1, 1), (1, 5_000), (5_000, 1)])
def test_odd_shapes_are_described(side: tuple[int, int]) -> None:
    found = told(png(flat(*side, 200, 30, 40)))
    assert (found.size.width, found.size.height) == side
    assert channels(found.color) == pytest.approx([200, 30, 40], abs=4)


def test_what_is_no_image_is_not_described() -> None:
    with pytest.raises(UnprocessableImage):
        told(b"<svg/>")


def test_the_page_shows_what_is_answered() -> None:
    shown = json.loads(re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)[0])
    found = told(photograph())
    (face,) = shown["faces"]
    landmarks = tuple(Point(x, y) for x, y in face["landmarks"])
    seen = Face(face["left"], face["top"], face["width"], face["height"], face["score"], landmarks)
    assert msgspec.to_builtins(_body(found, (seen,))) == shown


def test_no_detector_is_told_from_no_face() -> None:
    found: Description = told(photograph())
    assert _body(found, None)["faces"] is None
    assert _body(found, ())["faces"] == []
