"""Quotas: how much of the product one account may use. The operator sets them; there is no bound without."""

from dataclasses import dataclass
from enum import StrEnum


class QuotaName(StrEnum):
    """What is bounded, as operators call it.

    `programs` that exist, `events` published or changed a second, bytes of values in `storage`, and `images`
    made a minute.
    """

    PROGRAMS = "programs"
    EVENTS = "events"
    STORAGE = "storage"
    IMAGES = "images"


@dataclass(frozen=True, slots=True)
class Quotas:
    """The quotas of one account; None has no bound."""

    programs: int | None = None
    events: int | None = None
    storage: int | None = None
    images: int | None = None
