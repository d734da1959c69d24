"""The state of face detection in `/readyz` and `getHealth`. It does not affect readiness."""

import asyncio
from pathlib import Path

from broker.clock import Clock
from broker.images.errors import FacesUnavailable
from broker.images.faces.models import name_models
from broker.metrics import catalogue
from broker.metrics.page import read_samples
from broker.settings import Settings

KIND = "faces"
"""The kind of process that searches, as its figures name it."""


async def read_face_state(settings: Settings, clock: Clock) -> dict[str, str | list[str]]:
    """Which models there are, or why none; and the providers of ONNX Runtime that compute on this node now.

    There are no providers while nobody asks for faces.
    """
    samples = await read_samples(settings.data_dir, clock, KIND)
    loaded = [labels for name, labels, value in samples if name == catalogue.FACE_MODELS.name and value]
    return {
        "models": await asyncio.to_thread(_models, settings),
        "providers": sorted({provider for _, provider in loaded}),
    }


def _models(settings: Settings) -> str:
    directory = Path(settings.faces_models) if settings.faces_models else None
    try:
        return name_models(directory, settings.faces_detector)
    except FacesUnavailable as error:
        return f"none: {error.message}"
