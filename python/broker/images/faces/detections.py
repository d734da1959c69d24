"""Turns a detector's output into boxes: above the minimum score, without overlaps, best first."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from broker.images.geometry import Size

MOST_FACES = 64
"""Of one image; the surest are kept. A choir has more, but the crop needs the one in the middle."""

_CANDIDATES = 1_000  # the surest boxes that are compared with each other; a crowd of 64 has about 600


@dataclass(frozen=True, slots=True)
class Detection:
    """A box in pixels of the image that was looked at, inside of it."""

    left: float
    top: float
    width: float
    height: float
    score: float


def pick(
    boxes: NDArray[np.float32],
    scores: NDArray[np.float32],
    size: Size,
    *,
    min_score: float,
    max_overlap: float,
) -> list[Detection]:
    """The faces of one image.

    Args:
        boxes: (N, 4), left, top, right, bottom as shares of the longer side; they may reach past it.
        scores: (N,), 0 to 1.
        size: of the image.
        max_overlap: two boxes are one face if the share of their common area in their united one is larger.
    """
    order = np.argsort(-scores, kind="stable")[:_CANDIDATES]
    order = order[scores[order] >= min_score]
    inside = _inside(boxes[order].astype(np.float64) * max(size.width, size.height), size)
    has_area = (inside[:, 2] - inside[:, 0] >= 1) & (inside[:, 3] - inside[:, 1] >= 1)
    inside, kept_scores = inside[has_area], scores[order][has_area]
    return [
        Detection(left, top, right - left, bottom - top, float(kept_scores[at]))
        for at in suppress(inside, max_overlap)[:MOST_FACES]
        for left, top, right, bottom in [inside[at].tolist()]
    ]


def suppress(boxes: NDArray[np.float64], max_overlap: float) -> list[int]:
    """Indices of the boxes that overlap none before them too much; boxes come the surest first."""
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    left = np.arange(len(boxes))
    kept: list[int] = []
    while left.size:
        first, rest = int(left[0]), left[1:]
        kept.append(first)
        low = np.maximum(boxes[first, :2], boxes[rest, :2])
        high = np.minimum(boxes[first, 2:], boxes[rest, 2:])
        common = np.prod(np.clip(high - low, 0, None), axis=1)
        left = rest[common <= max_overlap * (areas[first] + areas[rest] - common)]
    return kept


def _inside(boxes: NDArray[np.float64], size: Size) -> NDArray[np.float64]:
    most = np.array([size.width, size.height, size.width, size.height], np.float64)
    return np.clip(boxes, 0, most)
