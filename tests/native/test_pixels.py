"""The filter of native code: the pixels that libvips makes with the same kernel, and what it refuses."""

import pytest
import pyvips

from broker._native import IMAGE_CRATES, resize_pixels
from tests.images.samples import decibels, photograph

SIZE = (400, 300)


@pytest.mark.parametrize("bands", [1, 3])
@pytest.mark.parametrize("target", [(200, 150), (131, 77), (40, 30), (40, 31), (400, 300)])
def test_it_filters_as_libvips_does(bands: int, target: tuple[int, int]) -> None:
    image = photograph(*SIZE)
    if bands == 1:
        image = image.colourspace("b-w")
    made = resize_pixels(bytes(image.write_to_memory()), bands, SIZE, SIZE, target)
    ours = pyvips.Image.new_from_memory(made, *target, bands, "uchar")
    theirs = image.resize(target[0] / SIZE[0], vscale=target[1] / SIZE[1], gap=0)
    assert decibels(ours, theirs.copy(interpretation=ours.interpretation)) > 40


def test_a_part_is_taken_from_the_first_corner_to_within_a_pixel() -> None:
    steps = bytes(range(0, 100, 10))
    assert resize_pixels(steps, 1, (10, 1), (5.0, 1.0), (5, 1)) == steps[:5]
    halves = resize_pixels(steps, 1, (10, 1), (2.5, 1.0), (5, 1))
    assert list(halves) == sorted(halves)
    assert halves[-1] < 30


@pytest.mark.parametrize(
    ("pixels", "bands", "size", "part", "target"),
    [
        (bytes(11), 1, (4, 3), (4, 3), (2, 2)),
        (bytes(24), 2, (4, 3), (4, 3), (2, 2)),
        (bytes(12), 1, (4, 3), (4.5, 3), (2, 2)),
        (bytes(12), 1, (4, 3), (-1, 3), (2, 2)),
        (bytes(12), 1, (4, 3), (float("nan"), 3), (2, 2)),
        (bytes(12), 1, (4, 3), (4, 3), (0, 2)),
        (b"", 1, (0, 0), (0, 0), (2, 2)),
    ],
)
def test_what_is_no_picture_is_refused(
    pixels: bytes, bands: int, size: tuple[int, int], part: tuple[float, float], target: tuple[int, int]
) -> None:
    with pytest.raises(ValueError, match=r"."):
        resize_pixels(pixels, bands, size, part, target)


def test_it_says_what_it_calls() -> None:
    words = IMAGE_CRATES.split()
    assert words[::2] == ["blurhash", "fast_image_resize", "thumbhash"]
    assert [version for version in words[1::2] if not version[0].isdigit()] == []
