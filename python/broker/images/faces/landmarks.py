"""The patch of the image for the landmark network, and its points in image coordinates."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from broker.images.faces.detections import Detection
from broker.images.faces.landmark_network import SIDE_PX
from broker.images.faces.resampling import Pixels, resize
from broker.images.geometry import Point


@dataclass(frozen=True, slots=True)
class Patch:
    """A square around a face, in pixels of the image, and what is in it.

    Attributes:
        pixels: (112, 112, 3) uint8 RGB; black beside the face's box, as the network was trained.
    """

    left: float
    top: float
    side: float
    pixels: Pixels

    def place(self, points: NDArray[np.float32]) -> tuple[Point, ...]:
        """Points of the image from (68, 2) shares of the patch."""
        return tuple(Point(self.left + x * self.side, self.top + y * self.side) for x, y in points.tolist())


def cut_patch(image: Pixels, face: Detection) -> Patch:
    """The square around a face's box, which is in its middle."""
    left, top = int(face.left), int(face.top)
    box = image[
        top : max(top + 1, round(face.top + face.height)), left : max(left + 1, round(face.left + face.width))
    ]
    height, width = box.shape[:2]
    side = max(height, width)
    square: Pixels = np.zeros((side, side, 3), np.uint8)
    down, across = (side - height) // 2, (side - width) // 2
    square[down : down + height, across : across + width] = box
    return Patch(left - across, top - down, side, resize(square, SIDE_PX, SIDE_PX))
