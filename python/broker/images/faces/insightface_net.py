"""An operator's models in insightface's format, loaded by insightface itself.

A directory such as insightface's packs have: any number of ONNX files, of which the model zoo tells the task.
The first detector and the 68 landmarks are used; without the landmarks faces have none. The pack `buffalo_l`
is of this format; its licence allows research only, so it is the operator's choice.
"""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from broker.images.errors import FacesUnavailable
from broker.images.faces.detections import MOST_FACES
from broker.images.faces.inference import Runtime, session_options
from broker.images.faces.resampling import Pixels
from broker.images.geometry import Face, Point

_DETECTION = "detection"
_LANDMARKS = ("landmark_3d_68", "landmark_2d_68")
_INPUT_PX = (640, 640)  # of detectors that leave it open: the largest side of what we send
_CPU_DEVICE = -1  # insightface's number for "no GPU"


class InsightFaceNet:
    """A `FaceNet` of insightface's models; images run one by one, as insightface runs them."""

    def __init__(self, directory: Path, runtime: Runtime, min_score: float) -> None:
        """Load the models of a directory.

        Raises:
            FacesUnavailable: insightface is not installed, cannot load them, or none is a detector.
        """
        models = _load(directory, runtime)
        if _DETECTION not in models:
            raise FacesUnavailable(f"{directory} has no detector in insightface's format")
        self._detector = models[_DETECTION]
        self._detector.prepare(
            0 if runtime.is_gpu else _CPU_DEVICE, input_size=_INPUT_PX, det_thresh=min_score
        )
        self._landmarks = next((models[task] for task in _LANDMARKS if task in models), None)
        self.find([np.zeros((*_INPUT_PX, 3), np.uint8)])

    @property
    def provider(self) -> str:
        """Of ONNX Runtime: what computes."""
        return str(self._detector.session.get_providers()[0])

    @property
    def largest_batch(self) -> int:
        """Images that are looked at together; more than these gain nothing."""
        return 1

    def find(self, images: Sequence[Pixels]) -> list[tuple[Face, ...]]:
        """The faces of each image, the surest first, in its pixels."""
        return [self._find(np.ascontiguousarray(image[:, :, ::-1])) for image in images]

    def _find(self, image: Pixels) -> tuple[Face, ...]:
        """Of an image in BGR, as OpenCV has them."""
        boxes, _ = self._detector.detect(image)
        return tuple(self._face(image, box) for box in boxes[:MOST_FACES])

    def _face(self, image: Pixels, box: Any) -> Face:
        left, top, right, bottom, score = (float(number) for number in box)
        points: tuple[Point, ...] = ()
        if self._landmarks is not None:
            given = importlib.import_module("insightface.app.common").Face(bbox=box[:4])
            placed = self._landmarks.get(image, given)
            points = tuple(Point(float(point[0]), float(point[1])) for point in placed)
        return Face(left, top, right - left, bottom - top, score, points)


def _load(directory: Path, runtime: Runtime) -> Mapping[str, Any]:
    """The first model of each task."""
    try:
        zoo = importlib.import_module("insightface.model_zoo.model_zoo")
    except ImportError as error:
        raise FacesUnavailable(
            f"models in insightface's format need it: pip install 'onair-broker[insightface]' ({error})"
        ) from error
    models: dict[str, Any] = {}
    for file in sorted(directory.glob("*.onnx")):
        try:
            model = zoo.get_model(
                str(file), providers=list(runtime.providers), sess_options=session_options(runtime)
            )
        except Exception as error:  # of native code, or an assertion of insightface
            raise FacesUnavailable(f"{file} cannot be loaded by insightface: {error}") from error
        if model is not None:
            models.setdefault(model.taskname, model)
    return models
