"""`broker.images.faces.detections`."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from broker.images.faces.detections import MOST_FACES, pick, suppress
from broker.images.geometry import Size

BOX = st.tuples(*[st.integers(0, 20)] * 2, *[st.integers(1, 10)] * 2).map(
    lambda box: (box[0], box[1], box[0] + box[2], box[1] + box[3])
)


def overlap(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    """Counted cell by cell."""
    cells = [{(x, y) for x in range(box[0], box[2]) for y in range(box[1], box[3])} for box in (one, other)]
    return len(cells[0] & cells[1]) / len(cells[0] | cells[1])


@given(st.lists(BOX, max_size=12))
def test_each_face_is_kept_once(boxes: list[tuple[int, ...]]) -> None:
    expected: list[int] = []
    for at, box in enumerate(boxes):
        if all(overlap(box, boxes[kept]) <= 0.5 for kept in expected):
            expected.append(at)
    assert suppress(np.array(boxes, np.float64).reshape(-1, 4), 0.5) == expected


def picked(boxes: list[list[float]], scores: list[float], size: Size) -> list[tuple[float, ...]]:
    found = pick(
        np.array(boxes, np.float32).reshape(-1, 4),
        np.array(scores, np.float32),
        size,
        min_score=0.5,
        max_overlap=0.5,
    )
    return [(face.left, face.top, face.width, face.height, round(face.score, 3)) for face in found]


def test_the_surest_come_first_and_the_unsure_not_at_all() -> None:
    boxes = [[0, 0, 0.25, 0.25], [0.5, 0.5, 0.75, 0.75], [0.75, 0, 1, 0.25]]
    assert picked(boxes, [0.5, 0.9, 0.49], Size(400, 400)) == [
        (200, 200, 100, 100, 0.9),
        (0, 0, 100, 100, 0.5),
    ]


def test_shares_are_of_the_longer_side_and_boxes_end_at_the_image() -> None:
    assert picked([[-0.1, 0.25, 0.5, 0.75]], [1], Size(400, 200)) == [(0, 100, 200, 100, 1)]


def test_a_box_in_the_padding_is_no_face() -> None:
    assert picked([[0, 0.6, 0.5, 0.9]], [1], Size(400, 200)) == []


def test_nothing_found_is_no_face() -> None:
    assert picked([], [], Size(400, 200)) == []


def test_a_crowd_is_bounded() -> None:
    places = [[x / 10, y / 10, x / 10 + 0.09, y / 10 + 0.09] for x in range(10) for y in range(10)]
    assert len(picked(places, [0.9] * 100, Size(640, 640))) == MOST_FACES
