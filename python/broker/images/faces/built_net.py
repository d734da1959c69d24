"""The models of the build: a detector, then the landmarks of all detected faces."""

from collections.abc import Sequence

import numpy as np

from broker.images.faces.detections import Detection, pick
from broker.images.faces.inference import Network, Runtime
from broker.images.faces.landmarks import cut_patch
from broker.images.faces.models import SSD, BuiltModels
from broker.images.faces.resampling import Pixels, letterbox, set_back
from broker.images.faces.ssd_network import SIDE_PX as SSD_SIDE_PX
from broker.images.faces.tiny_network import SIDE_PX as TINY_SIDE_PX
from broker.images.geometry import Face, Point, Size

# As face-api has them, and so what the networks' authors tried.
_SSD_OVERLAP = 0.5
_TINY_OVERLAP = 0.4


class BuiltNet:
    """A `FaceNet` of face-api's networks."""

    def __init__(self, models: BuiltModels, runtime: Runtime, min_score: float) -> None:
        """Load and warm them.

        Raises:
            FacesUnavailable: ONNX Runtime cannot run them.
        """
        is_ssd = models.detector.name == SSD
        self._side = SSD_SIDE_PX if is_ssd else TINY_SIDE_PX
        self._overlap = _SSD_OVERLAP if is_ssd else _TINY_OVERLAP
        self._min_score = min_score
        self._detector = Network(models.detector, runtime)
        self._landmarks = Network(models.landmarks, runtime)

    @property
    def provider(self) -> str:
        """Of ONNX Runtime: what computes."""
        return self._detector.provider

    @property
    def largest_batch(self) -> int:
        """Images that are looked at together; more than these gain nothing."""
        return self._detector.largest_batch

    def find(self, images: Sequence[Pixels]) -> list[tuple[Face, ...]]:
        """The faces of each image, the surest first, in its pixels."""
        if not images:
            return []
        found = self._detect(images)
        pairs = [(image, face) for image, faces in zip(images, found, strict=True) for face in faces]
        points = iter(self._points(pairs))
        return [tuple(_face(face, next(points)) for face in faces) for faces in found]

    def _detect(self, images: Sequence[Pixels]) -> list[list[Detection]]:
        """An image without a face is looked at again from afar: the detectors miss faces that fill it."""
        found = self._look(images, from_afar=False)
        missed = [at for at, faces in enumerate(found) if not faces]
        if missed:
            again = self._look([images[at] for at in missed], from_afar=True)
            for at, faces in zip(missed, again, strict=True):
                found[at] = faces
        return found

    def _look(self, images: Sequence[Pixels], *, from_afar: bool) -> list[list[Detection]]:
        frame = set_back if from_afar else letterbox
        outputs = self._detector.run(np.stack([frame(image, self._side) for image in images]))
        boxes = outputs["boxes"] * 2 - 0.5 if from_afar else outputs["boxes"]
        return [
            pick(
                boxes[at],
                outputs["scores"][at],
                Size(image.shape[1], image.shape[0]),
                min_score=self._min_score,
                max_overlap=self._overlap,
            )
            for at, image in enumerate(images)
        ]

    def _points(self, faces: Sequence[tuple[Pixels, Detection]]) -> list[tuple[Point, ...]]:
        if not faces:
            return []
        patches = [cut_patch(image, face) for image, face in faces]
        points = self._landmarks.run(np.stack([patch.pixels for patch in patches]))["points"]
        return [patch.place(points[at]) for at, patch in enumerate(patches)]


def _face(found: Detection, points: tuple[Point, ...]) -> Face:
    return Face(found.left, found.top, found.width, found.height, found.score, points)
