"""No detector: crops go by what draws the eye."""

from broker.images.errors import FacesUnavailable
from broker.images.geometry import Face, Size


class NoFaces:
    """A `FaceFinder` without a model."""

    async def find(self, size: Size, pixels: bytes) -> tuple[Face, ...]:
        """Raises FacesUnavailable."""
        del size, pixels
        raise FacesUnavailable("there is no model")
