"""What is asked of the product, and what it runs on. A value that cannot be names its option."""

from dataclasses import dataclass, fields


class OptionError(ValueError):
    """A value that the model cannot take; the text names the option of the command line."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A show.

    Attributes:
        viewers: of all programs together, each with a connection and one subscription.
        programs: published to alike; viewers are divided among them evenly, and over all gateways.
        events_per_s: of each program.
        message_bytes: of a notification, JSON-RPC envelope included.
        deadline_s: within which an event of every program at once must be with its last viewer.
        join_s: within which all viewers come.
        votes: of one poll, by as many visitors; 0 is no vote.
        vote_s: within which they come, evenly.
        tls: whether the gateways encrypt.
        alive: whether viewers ask for a sign of life in each silent second, as the JavaScript SDK does.
    """

    viewers: int
    programs: int = 1
    events_per_s: float = 2.0
    message_bytes: int = 300
    deadline_s: float = 1.0
    join_s: float = 300.0
    votes: int = 0
    vote_s: float = 30.0
    tls: bool = True
    alive: bool = True

    def __post_init__(self) -> None:
        _require_positive(self, zero=("votes", "events_per_s"))
        if self.programs > self.viewers:
            raise OptionError(f"--programs: {self.programs:,} programs have fewer viewers ({self.viewers:,})")
        if self.message_bytes > 65_535:
            raise OptionError("--message-bytes: the model has frames of up to 65,535 bytes")


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a node has, and PostgreSQL's limit of connections.

    Attributes:
        busy: the share of processors, memory and network that a plan may use, up to 1; the rest is for
            what the model does not know.
    """

    cores: int = 16
    memory_gb: float = 64.0
    gbit_per_s: float = 10.0
    postgres_connections: int = 500
    busy: float = 0.7

    def __post_init__(self) -> None:
        _require_positive(self)
        if self.busy > 1:
            raise OptionError("--busy: a share is at most 1")

    @property
    def bytes_per_s(self) -> float:
        """Of the network, one way."""
        return self.gbit_per_s * 1e9 / 8


def _require_positive(values: Scene | Hardware, zero: tuple[str, ...] = ()) -> None:
    """Refuse numbers that are not over 0; those named in `zero` may be 0. Raises OptionError."""
    for field in fields(values):
        value = getattr(values, field.name)
        lowest_taken = value >= 0 if field.name in zero else value > 0
        if not isinstance(value, bool) and not (lowest_taken and value < float("inf")):
            least = "at least 0" if field.name in zero else "over 0"
            raise OptionError(f"--{field.name.replace('_', '-')}: {value} is not a number {least}")


SCENES = {
    "10 million viewers of one program": Scene(10_000_000),
    "1,000 programs with 10,000 viewers each": Scene(10_000_000, programs=1_000),
    "5 million votes in 30 s": Scene(5_000_000, events_per_s=1.0, votes=5_000_000, vote_s=30.0),
}
"""Name → scene: what `python -m bench capacity` shows when nothing else is asked."""
