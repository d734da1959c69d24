"""The interface of face detection on a batch of images, whichever models it runs."""

from collections.abc import Sequence
from typing import Protocol

from broker.images.faces.resampling import Pixels
from broker.images.geometry import Face


class FaceNet(Protocol):
    """Loaded models. One call at a time; it blocks, and lets other threads run meanwhile."""

    @property
    def provider(self) -> str:
        """Of ONNX Runtime: what computes."""
        ...

    @property
    def largest_batch(self) -> int:
        """Images that are looked at together; more than these gain nothing."""
        ...

    def find(self, images: Sequence[Pixels]) -> list[tuple[Face, ...]]:
        """The faces of each image, the surest first, in its pixels."""
        ...
