"""The state of the image proxy in `/readyz` and `getHealth`. It does not affect readiness."""

from broker.clock import Clock
from broker.metrics import catalogue
from broker.metrics.page import read_samples
from broker.settings import Settings

CONDUCTOR = "conductor"
"""The process that starts them, as its figures name it."""


async def read_image_state(settings: Settings, clock: Clock) -> str:
    """`ok`, or why not; `unknown` on a node where nothing that starts them answers."""
    samples = await read_samples(settings.data_dir, clock, CONDUCTOR)
    told = [value for name, _, value in samples if name == catalogue.IMAGES_UP.name]
    if not told:
        return "unknown"
    return "ok" if any(told) else "not made at present; the conductor's log says why"
