"""The answer of an owner that is asked for a program of another one."""

from collections.abc import Sequence

from broker.domain.placement import Placement
from broker.errors import FieldFault, Unavailable


class Moved(Unavailable, name="moved"):
    """Nothing was done, for another owner has the program. Ask that one, by `placement`."""

    def __init__(
        self,
        message: str = "the program has another owner",
        *,
        faults: Sequence[FieldFault] = (),
        retry_after_s: int | None = 1,
        log_text: str | None = None,
    ) -> None:
        super().__init__(message, faults=faults, retry_after_s=retry_after_s, log_text=log_text)

    @classmethod
    def by(cls, placement: Placement) -> "Moved":
        """The answer of an owner that acts on this placement."""
        return cls(log_text=f"{placement.version} {placement.owners}")

    @property
    def placement(self) -> Placement:
        """The placement that the owner acts on."""
        version, owners = (self.log_text or "0 1").split()
        return Placement(int(version), int(owners))
