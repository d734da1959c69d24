"""The health of the product: asked once for all who want to know it at the same time.

The checks call every owner and counter and query the database. Probes, scrapes and administrators who look
share a run that is under way, so that many of them cost no more than one.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from broker.clock import Clock
from broker.concurrency.single_flight import SingleFlight
from broker.domain.maintenance import Maintenance
from broker.operations.face_state import read_face_state
from broker.operations.image_state import read_image_state
from broker.operations.known_maintenance import KnownMaintenance
from broker.settings import Settings

OK = "ok"

Checks = Callable[[], Coroutine[Any, Any, Mapping[str, str]]]
"""Check the parts that the product needs, such as `database`: `ok`, or what is wrong, for each.

Must come back within seconds, whatever is wrong.
"""


@dataclass(frozen=True, slots=True)
class HealthReport:
    """How the parts are. Those of images do not affect readiness, and maintenance does not."""

    parts: Mapping[str, str]
    images: str
    faces: Mapping[str, str | list[str]]
    maintenance: Maintenance | None

    @property
    def is_ready(self) -> bool:
        """Whether every part that the product needs responds."""
        return all(state == OK for state in self.parts.values())

    @property
    def status(self) -> str:
        """`ok` or `unavailable`."""
        return OK if self.is_ready else "unavailable"

    def fields(self) -> dict[str, Any]:
        """What `/readyz` and `getHealth` tell, by the names of the fields."""
        return {
            "status": self.status,
            "parts": self.parts,
            "images": self.images,
            "faces": self.faces,
            "maintenance": None if self.maintenance is None else self.maintenance.fields(),
        }


class ProductHealth:
    """The checks of one process. Safe for any number of callers on one event loop, and to cancel."""

    def __init__(
        self, settings: Settings, clock: Clock, maintenance: KnownMaintenance, checks: Checks
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._maintenance = maintenance
        self._checks = checks
        self._runs: SingleFlight[None, Mapping[str, str]] = SingleFlight()

    async def check(self) -> Mapping[str, str]:
        """`ok`, or what is wrong, for each part that the product needs. Raises Unavailable once closed."""
        return await self._runs.run(None, self._checks)

    async def report(self) -> HealthReport:
        """These parts, and those of images. Raises Unavailable once closed."""
        parts, images, faces = await asyncio.gather(
            self.check(),
            read_image_state(self._settings, self._clock),
            read_face_state(self._settings, self._clock),
        )
        return HealthReport(parts, images, faces, self._maintenance.current)

    async def close(self) -> None:
        """End a run that is under way. Idempotent."""
        await self._runs.close()
