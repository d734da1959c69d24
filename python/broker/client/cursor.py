"""Where a subscription stands."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Cursor:
    """A position in a program's history: everything up to and including `seq` of `epoch` is known.

    `id` is that of the message at `seq` where it was seen. The broker compares it: another one there means
    that it has lost history, and whoever comes back is told so. Cursors are equal with it and without it.
    """

    epoch: str
    seq: int
    id: str | None = field(default=None, compare=False)
