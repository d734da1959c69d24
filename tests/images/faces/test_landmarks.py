"""`broker.images.faces.landmarks`."""

import numpy as np

from broker.images.faces.detections import Detection
from broker.images.faces.landmarks import cut_patch
from broker.images.geometry import Point

IMAGE = np.full((100, 200, 3), 200, np.uint8)


def test_a_box_stands_in_the_middle_of_its_square() -> None:
    patch = cut_patch(IMAGE, Detection(50, 20, 40, 60, 1))
    assert (patch.left, patch.top, patch.side) == (40, 20, 60)
    assert patch.pixels.shape == (112, 112, 3)
    assert np.all(patch.pixels[:, 20:92] == 200)
    assert not patch.pixels[:, :18].any()
    assert not patch.pixels[:, 94:].any()


def test_points_come_back_in_pixels_of_the_image() -> None:
    patch = cut_patch(IMAGE, Detection(50, 20, 60, 40, 1))
    points = patch.place(np.array([[0, 0], [0.5, 0.5], [1, 1]], np.float32))
    assert points == (Point(50, 10), Point(80, 40), Point(110, 70))


def test_a_box_at_the_edge_is_cut_there() -> None:
    patch = cut_patch(IMAGE, Detection(190.5, 90.2, 9.5, 9.8, 1))
    assert (patch.left, patch.top, patch.side) == (190, 90, 10)


def test_a_box_of_a_pixel_has_a_patch() -> None:
    assert cut_patch(IMAGE, Detection(199.2, 99.1, 0.8, 0.9, 1)).side == 1
