"""A decoded image that serves the preview and the crop: what comes out, and what is kept."""

from functools import cache

import pytest
import pyvips

from broker.images.decoded import KeptFrames
from broker.images.decoding import check_image, open_libvips
from broker.images.errors import UnprocessableImage
from broker.images.geometry import Face
from broker.images.jobs import DecodeLimits
from broker.images.options import parse_options
from broker.images.rendering import Preview, preview, render
from tests.images.samples import animation, decibels, gradient, photograph, turned

LIMITS = DecodeLimits()
ROOM = 64 << 20
SIZE = (1_400, 1_050)
LARGE = bytes(gradient(2_600, 1_950).jpegsave_buffer(Q=80))  # over four megapixels


@pytest.fixture(scope="module", autouse=True)
def _libvips() -> None:
    open_libvips()


@cache
def saved(kind: str, orientation: int = 1) -> bytes:
    image = photograph(*SIZE)
    if kind == "gray":
        image = image.colourspace("b-w")
    if kind == "wide":
        image = image.icc_transform("p3", input_profile="srgb")
    if kind == "alpha":
        image = image.bandjoin(128)
    if orientation != 1:
        image = image.copy()
        image.set_type(pyvips.GValue.gint_type, "orientation", orientation)
    if kind in ("png", "alpha"):
        return bytes(image.pngsave_buffer(compression=1))
    return bytes(image.jpegsave_buffer(Q=95, keep="icc" if orientation == 1 else "all"))


def face_of(height: float) -> Face:
    """In the middle of the image as it is seen."""
    return Face(500.0, 450.0, 0.8 * height, height, 0.9)


@pytest.mark.parametrize(
    ("kind", "orientation"),
    [("jpg", 1), ("jpg", 3), ("jpg", 6), ("gray", 1), ("wide", 1), ("wide", 8), ("png", 1), ("alpha", 1)],
)
@pytest.mark.parametrize(
    ("options", "faces"),
    [
        ("w=50,h=50,fit=face", (face_of(500),)),
        ("w=100,h=50,fit=face-and-shoulders", (face_of(200),)),
        ("w=50,h=50,fit=face", (face_of(60),)),  # more pixels than the kept image may have
        ("w=400,h=400,fit=face", (face_of(50),)),  # enlarged
        ("w=50,h=100,fit=face", ()),
    ],
)
def test_a_crop_of_a_kept_image_looks_as_one_of_its_source(
    kind: str, orientation: int, options: str, faces: tuple[Face, ...]
) -> None:
    checked, asked = check_image(saved(kind, orientation), LIMITS), parse_options(f"{options},f=png")
    kept = KeptFrames(ROOM)
    seen = preview(kept.decode(1, checked, asked))
    alone = preview(checked)
    assert (seen.size, seen.scale) == (alone.size, alone.scale)
    assert decibels(pixels_of(seen), pixels_of(alone)) > 38
    found = kept.take(1, checked)
    assert found.frame is not None
    made, wanted = (render(each, asked, faces) for each in (found, checked))
    assert made.size == wanted.size
    assert decibels(*(pyvips.Image.new_from_buffer(each.body, "")[:3] for each in (made, wanted))) > 36


def pixels_of(seen: Preview) -> pyvips.Image:
    return pyvips.Image.new_from_memory(seen.pixels, seen.size.width, seen.size.height, 3, "uchar")


def kept_shrink(data: bytes, options: str, room: int = ROOM) -> int | None:
    kept = KeptFrames(room)
    frame = kept.decode(1, check_image(data, LIMITS), parse_options(options)).frame
    assert len(kept) == (frame is not None)
    return frame.shrink if frame else None


@pytest.mark.parametrize(
    ("options", "shrink"),
    [
        ("w=50,h=50,fit=face", 4),
        ("w=100,h=100,fit=face", 4),
        ("w=200,h=100,fit=face", 4),
        ("w=200,h=200,fit=face", 2),
        ("w=300,h=300,fit=face", None),
        ("w=300,h=300,fit=face-and-shoulders", 2),
        ("w=300,h=300,fit=face,padding=3.3", 2),
    ],
)
def test_a_large_jpeg_is_kept_as_small_as_a_portraits_crop_allows(options: str, shrink: int | None) -> None:
    assert kept_shrink(LARGE, options) == shrink


def test_a_small_jpeg_and_what_no_decoder_shrinks_are_kept_whole() -> None:
    for data in (bytes(gradient(700, 500).jpegsave_buffer()), saved("png")):
        assert kept_shrink(data, "w=400,h=400,fit=face") == 1


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (bytes(gradient(700, 500).jpegsave_buffer()), "w=50,h=50,fit=fill"),
        (bytes(gradient(700, 500).jpegsave_buffer()), "f=json"),
        (bytes(animation().gifsave_buffer()), "w=50,h=50,fit=face"),
        (bytes(gradient(700, 500).colourspace("cmyk").jpegsave_buffer()), "w=50,h=50,fit=face"),
        (bytes(gradient(700, 500).colourspace("rgb16").pngsave_buffer()), "w=50,h=50,fit=face"),
    ],
    ids=["another-mode", "description", "animation", "cmyk", "16-bit"],
)
def test_what_no_crop_can_use_is_not_kept(data: bytes, options: str) -> None:
    assert kept_shrink(data, options) is None


def test_what_is_kept_has_a_bound_and_the_oldest_goes_first() -> None:
    checked, options = (
        check_image(turned(gradient(100, 100), 1), LIMITS),
        parse_options("w=50,h=50,fit=face"),
    )
    kept = KeptFrames(2 * 100 * 100 * 3)
    for number in (1, 2, 3):
        kept.decode(number, checked, options)
    assert [kept.take(number, checked).frame is not None for number in (1, 2, 3, 3)] == [
        False,
        True,
        True,
        False,
    ]
    kept.decode(4, checked, options)
    kept.forget_all()
    assert kept.take(4, checked).frame is None


def test_an_image_that_is_larger_than_the_bound_drives_no_other_one_out() -> None:
    options = parse_options("w=50,h=50,fit=face")
    small, large = (check_image(turned(gradient(side, 100), 1), LIMITS) for side in (100, 101))
    kept = KeptFrames(100 * 100 * 3)
    kept.decode(1, small, options)
    assert kept.decode(2, large, options).frame is None
    assert kept.take(1, small).frame is not None


def test_half_an_image_is_refused_and_not_kept() -> None:
    data, kept = saved("jpg"), KeptFrames(ROOM)
    checked = check_image(data[: len(data) // 2], LIMITS)
    with pytest.raises(UnprocessableImage):
        kept.decode(1, checked, parse_options("w=100,h=100,fit=face"))
    assert not kept
