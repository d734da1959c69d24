"""The usage of the image proxy by accounts, recorded as it happens."""

from typing import Protocol

from broker.domain.statistics import ImagesUsed


class UsageCounter(Protocol):
    """Adds it up. Called on the event loop."""

    def count_images(self, account: str, used: ImagesUsed) -> None:
        """Add to what an account used. The account exists."""
        ...


class Uncounted:
    """Adds nothing up, where the statistics are off."""

    def count_images(self, account: str, used: ImagesUsed) -> None:
        """Nothing."""
