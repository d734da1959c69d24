"""Where dlib sees faces: other detectors, another training set and another landmark model than ours.

The bench installs the package `face-recognition-models`, which has files of dlib's author: a convolutional
detector, which sees profiles too, and 68 landmarks, of the same numbering as ours. The landmarks' licence
allows no commercial use, so they go into no product. They were trained on the boxes of the detector that is
part of dlib (histograms of gradients), which sees frontal faces, so only such faces have a nose. Without the
package that detector finds the faces, and none has a nose.
"""

import importlib.util
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from broker.images.geometry import Point, Size

_MIN_SCORE = 0.2
"""Of the detector by gradients; below it patches of cloth are faces, as one of the astronaut's."""
_MIN_CONFIDENCE = 0.6
_SIDE_PX = 960
"""That the convolutional detector looks at: 7 seconds of a core."""
_SAME = 0.5
"""Two boxes are one face when their centres are nearer than this share of the network's box."""
_HAIR_OF_GRADIENTS, _HAIR_OF_NETWORK = 0.4, 0.25
"""From the box up to the crown of the head, in heights of the box: one box begins at the brows."""
_TIE = 0.1
"""Two faces are as near to the centre when they differ by less than this share of a face's height."""
_NOSE_TIP = 30
_PACKAGE = "face_recognition_models"
_DETECTOR = "mmod_human_face_detector.dat"
_LANDMARKS = "shape_predictor_68_face_landmarks.dat"


@dataclass(frozen=True, slots=True)
class Seen:
    """A face as the judge sees it, in pixels: box, crown of the head, and tip of the nose if known."""

    left: float
    top: float
    right: float
    bottom: float
    crown: float
    nose: Point | None = None

    @property
    def height(self) -> float:
        """Of the box."""
        return self.bottom - self.top

    @property
    def center(self) -> Point:
        """Of the box."""
        return Point((self.left + self.right) / 2, (self.top + self.bottom) / 2)


class Judge:
    """Loads dlib and its models once.

    Args:
        models: directory of the models; None for dlib's own detector alone.
    """

    def __init__(self, models: Path | None) -> None:
        self.has_models = models is not None
        self._gradients = dlib.get_frontal_face_detector()
        if models is not None:
            self._network = dlib.cnn_face_detection_model_v1(str(models / _DETECTOR))
            self._landmarks = dlib.shape_predictor(str(models / _LANDMARKS))

    def look(self, pixels: NDArray[np.uint8]) -> list[Seen]:
        """The faces of a (height, width, 3) uint8 RGB image."""
        if not self.has_models:
            boxes, _, _ = self._gradients.run(pixels, 1, _MIN_SCORE)  # enlarged once, to see small ones
            return [_seen(box, 1.0, _HAIR_OF_GRADIENTS) for box in boxes]
        height, width = pixels.shape[:2]
        factor = min(1.0, _SIDE_PX / max(height, width))
        small = Image.fromarray(pixels).resize((round(width * factor), round(height * factor)))
        found = self._network(np.asarray(small), 0)
        return [
            self._with_nose(pixels, _seen(face.rect, factor, _HAIR_OF_NETWORK))
            for face in found
            if face.confidence > _MIN_CONFIDENCE
        ]

    def _with_nose(self, pixels: NDArray[np.uint8], face: Seen) -> Seen:
        """The face with its nose, where the detector by gradients sees it too.

        On the network's boxes the landmarks are up to a third of a face beside a nose that anybody sees.
        """
        boxes = [
            box
            for box in self._gradients(pixels, 0)
            if distance(_seen(box, 1.0, _HAIR_OF_GRADIENTS).center, face.center) < _SAME * face.height
        ]
        if not boxes:
            return face
        tip = self._landmarks(pixels, boxes[0]).part(_NOSE_TIP)
        return replace(face, nose=Point(tip.x, tip.y))


def _seen(box: Any, factor: float, hair: float) -> Seen:
    left, top, right, bottom = (
        side / factor for side in (box.left(), box.top(), box.right() + 1, box.bottom() + 1)
    )
    return Seen(left, top, right, bottom, top - hair * (bottom - top))


def find_models() -> Path | None:
    """The directory of dlib's models. Their package is not imported: it needs a module that is no more."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "models"


def find_wanted(faces: list[Seen], chosen: Point | None, size: Size) -> Seen | None:
    """The face that is nearest to the image's centre; of several as near, the one that was chosen.

    Args:
        chosen: the centre of the face that ours chose.
    """
    middle = Point(size.width / 2, size.height / 2)
    nearest = min(faces, key=lambda face: distance(face.center, middle), default=None)
    if nearest is None or chosen is None:
        return nearest
    most = distance(nearest.center, middle) + _TIE * nearest.height
    as_near = [face for face in faces if distance(face.center, middle) <= most]
    return min(as_near, key=lambda face: distance(face.center, chosen))


def distance(one: Point, other: Point) -> float:
    """Between two places, in pixels."""
    return math.dist((one.x, one.y), (other.x, other.y))
