"""`broker.images.faces.resampling`."""

import numpy as np
import pytest

from broker.images.faces.resampling import Pixels, letterbox, resize, set_back

GREY = 128


def plain(width: int, height: int) -> Pixels:
    return np.full((height, width, 3), GREY, np.uint8)


def noise(width: int, height: int) -> Pixels:
    return np.random.default_rng(1).integers(0, 256, (height, width, 3), np.uint8)


def test_the_same_size_is_the_same_image() -> None:
    image = noise(17, 9)
    assert np.array_equal(resize(image, 17, 9), image)


@pytest.mark.parametrize(("width", "height"), [(1, 1), (5, 3), (40, 90), (1, 50)])
def test_one_colour_stays_it(width: int, height: int) -> None:
    resized = resize(plain(31, 20), width, height)
    assert resized.shape == (height, width, 3)
    assert np.all(resized == GREY)


def test_halving_is_the_mean_of_blocks() -> None:
    image = noise(8, 6)
    expected = [
        [image[y : y + 2, x : x + 2].reshape(4, 3).mean(axis=0) for x in range(0, 8, 2)]
        for y in range(0, 6, 2)
    ]
    assert np.array_equal(resize(image, 4, 3), np.rint(expected))


def test_enlarging_interpolates_between_the_nearest_pixels() -> None:
    image = noise(7, 5)
    enlarged = resize(image, 10, 8)
    for row in range(8):
        for column in range(10):
            y = min(max((row + 0.5) * 5 / 8 - 0.5, 0), 4)
            x = min(max((column + 0.5) * 7 / 10 - 0.5, 0), 6)
            corners = [
                (abs(1 - abs(y - ny)) * abs(1 - abs(x - nx)), image[ny, nx])
                for ny in {int(y), min(int(y) + 1, 4)}
                for nx in {int(x), min(int(x) + 1, 6)}
            ]
            expected = sum(share * pixel for share, pixel in corners) / sum(share for share, _ in corners)
            assert np.abs(enlarged[row, column] - expected).max() <= 0.51


@pytest.mark.parametrize(("width", "height"), [(200, 50), (50, 200), (64, 64), (640, 1), (3, 2)])
def test_a_letterbox_is_black_beside_the_image(width: int, height: int) -> None:
    square = letterbox(plain(width, height), 64)
    assert square.shape == (64, 64, 3)
    right, bottom = (
        max(1, round(64 * width / max(width, height))),
        max(1, round(64 * height / max(width, height))),
    )
    assert np.all(square[:bottom, :right] == GREY)
    assert not square[bottom:].any()
    assert not square[:, right:].any()


def test_set_back_an_image_is_half_as_large_and_in_the_middle() -> None:
    square = set_back(plain(200, 200), 64)
    assert np.all(square[16:48, 16:48] == GREY)
    square[16:48, 16:48] = 0
    assert not square.any()
