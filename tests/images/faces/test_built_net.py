"""`broker.images.faces.built_net` on photographs."""

import numpy as np

from broker.images.faces.built_net import BuiltNet
from broker.images.faces.resampling import Pixels, resize
from broker.images.geometry import Face

# Noses in insightface's group photograph, from left to right, read off by eye.
NOSES = [(58, 169), (151, 114), (253, 182), (385, 217), (460, 76), (583, 174)]


def nose_errors(faces: tuple[Face, ...]) -> list[float]:
    """How far each nose of the group is from the nearest that was found, in pixels."""
    return [min(np.hypot(face.nose.x - x, face.nose.y - y) for face in faces) for x, y in NOSES]


def test_ssd_finds_every_face_of_a_group_and_its_nose(ssd: BuiltNet, friends: Pixels) -> None:
    (faces,) = ssd.find([friends])
    assert len(faces) == 6
    assert max(nose_errors(faces)) < 8
    assert [face.score for face in faces] == sorted((face.score for face in faces), reverse=True)


def test_landmarks_follow_ibug(ssd: BuiltNet, astronaut: Pixels) -> None:
    ((face,),) = ssd.find([astronaut])
    points = face.landmarks
    assert len(points) == 68
    chin, tip, right_eye, left_eye, mouth = points[8], points[30], points[36], points[45], points[57]
    assert right_eye.x < tip.x < left_eye.x
    assert right_eye.y < tip.y < mouth.y < chin.y
    assert np.hypot(tip.x - 223, tip.y - 127) < 5


def test_tiny_finds_most_and_is_right_about_them(tiny: BuiltNet, friends: Pixels) -> None:
    (faces,) = tiny.find([friends])
    assert len(faces) >= 4
    errors = sorted(nose_errors(faces))[: len(faces)]
    assert max(errors) < 8


def test_a_face_that_fills_the_image_is_found(ssd: BuiltNet, tiny: BuiltNet, portrait: Pixels) -> None:
    for net in (ssd, tiny):
        ((face,),) = net.find([portrait])
        assert face.height > 80
        assert np.hypot(face.nose.x - 61, face.nose.y - 79) < 8


def test_an_image_of_any_shape_is_looked_at(tiny: BuiltNet, astronaut: Pixels) -> None:
    wide = astronaut[60:260]
    tall = astronaut[:, 150:300]
    shapes = [wide, tall, astronaut[:1], astronaut[:, :1], astronaut[:1, :1]]
    found = tiny.find(shapes)
    assert [len(faces) for faces in found] == [1, 1, 0, 0, 0]
    assert abs(found[0][0].nose.x - 223) < 8
    assert abs(found[0][0].nose.y - 67) < 8
    assert abs(found[1][0].nose.x - 73) < 8


def test_images_of_a_batch_do_not_mix(tiny: BuiltNet, friends: Pixels, astronaut: Pixels) -> None:
    empty: Pixels = np.zeros((40, 30, 3), np.uint8)
    together = tiny.find([astronaut, empty, friends])
    assert together == [tiny.find([image])[0] for image in (astronaut, empty, friends)]
    assert together[1] == ()


def test_a_face_is_found_where_it_is_in_a_larger_copy(ssd: BuiltNet, astronaut: Pixels) -> None:
    ((small,),) = ssd.find([resize(astronaut, 320, 320)])
    ((large,),) = ssd.find([resize(astronaut, 640, 640)])
    assert abs(small.scaled(2).nose.x - large.nose.x) < 10
    assert abs(small.scaled(2).nose.y - large.nose.y) < 10


def test_no_image_is_no_face(tiny: BuiltNet) -> None:
    assert tiny.find([]) == []
