"""Maintenance: while it is on, callers change nothing and go on reading."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, Field

from broker.domain.values import format_ms

MOST_RETRY_AFTER_S = 86_400
DEFAULT_RETRY_AFTER_S = 30
DEFAULT_MESSAGE = "changes are not accepted during maintenance; reading goes on"


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be a single line of text")
    return text


Message = Annotated[str, Field(min_length=1, max_length=500), AfterValidator(_printable)]
"""What callers are told. It is public."""

RetryAfter = Annotated[int, Field(ge=1, le=MOST_RETRY_AFTER_S)]
"""Seconds after which a refused caller may try again."""


@dataclass(frozen=True, slots=True)
class Maintenance:
    """That it is on.

    Attributes:
        started_ms: since when, by the clock of the database.
    """

    message: str
    retry_after_s: int
    started_ms: int

    def fields(self) -> dict[str, str | int]:
        """What `/readyz`, `getHealth` and the command line tell, by the names of the fields."""
        since = format_ms(self.started_ms)
        return {"message": self.message, "retryAfter": self.retry_after_s, "since": since}
