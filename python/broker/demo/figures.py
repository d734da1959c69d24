"""The counts of the demonstration: deliveries, latencies, and whether every viewer saw every event. Pure."""

import hashlib
import math
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_KEPT_S = 60
_KEPT_LATENCIES = 20_000  # of the last seconds; percentiles need no more
_BARS = "▁▂▃▄▅▆▇█"


class Story:
    """Events in the order told, as a running digest: equal stories have equal digests, and cost no memory."""

    def __init__(self, seq: int) -> None:
        """Begin after `seq`."""
        self._hash = hashlib.blake2b(digest_size=16)
        self.seq = seq

    def tell(self, seq: int, event_id: str) -> None:
        """Add the next event."""
        self.seq = seq
        self._hash.update(f"{seq} {event_id};".encode())

    @property
    def digest(self) -> str:
        """Of all events told."""
        return self._hash.hexdigest()


@dataclass
class Viewer:
    """What one viewer saw.

    Attributes:
        is_ordered: falls when an event came out of order or twice.
        fault: why the viewer had to stop, empty while it goes on.
    """

    story: Story
    deliveries: int = 0
    is_ordered: bool = True
    fault: str = ""

    def see(self, seq: int, event_id: str) -> None:
        """Take one delivered event."""
        self.deliveries += 1
        if seq <= self.story.seq:
            self.is_ordered = False
        self.story.tell(seq, event_id)


@dataclass(frozen=True, slots=True)
class ShowVerdict:
    """Whether every viewer saw what the broker keeps, in order; `faults` says who did not."""

    viewers: int
    events: int
    faults: tuple[str, ...]


def judge(
    acknowledged: Mapping[int, str], log: Mapping[int, str], first_seq: int, viewers: Sequence[Viewer]
) -> ShowVerdict:
    """Compare what producers were promised, what the broker keeps, and what every viewer saw.

    Args:
        acknowledged, log: seq → id of the event, after `first_seq`.
    """
    story = Story(first_seq)
    for seq in sorted(log):
        story.tell(seq, log[seq])
    lost = [seq for seq, event_id in acknowledged.items() if log.get(seq) != event_id]
    faults = [f"event {seq} was acknowledged and is not kept" for seq in sorted(lost)]
    for number, viewer in enumerate(viewers, start=1):
        if viewer.fault:
            faults.append(f"viewer {number} could not go on: {viewer.fault}")
        elif not viewer.is_ordered:
            faults.append(f"viewer {number} saw events out of order or twice")
        elif viewer.story.seq != story.seq:
            faults.append(f"viewer {number} stopped at {viewer.story.seq} of {story.seq}")
        elif viewer.story.digest != story.digest:
            faults.append(f"viewer {number} saw other events than are kept")
    return ShowVerdict(len(viewers), len(log), tuple(faults))


@dataclass
class VoteFigures:
    """What the voters sent, and what they were promised.

    Attributes:
        counted: context → option → first answers that were acknowledged.
        repeats: acknowledged answers of voters who had answered already.
        late: answers that were refused because the poll had closed.
        faults: why voters could not answer.
    """

    sent: int = 0
    repeats: int = 0
    late: int = 0
    faults: list[str] = field(default_factory=list)
    counted: defaultdict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))

    def acknowledge(self, context: str, option: int, *, is_repeat: bool) -> None:
        """Take an acknowledged answer."""
        if is_repeat:
            self.repeats += 1
        else:
            self.counted[context][option] += 1

    @property
    def acknowledged(self) -> int:
        """Answers of which the broker said that they are durable."""
        return self.repeats + sum(counts.total() for counts in self.counted.values())


def judge_answers(
    votes: VoteFigures, report: Mapping[str, Mapping[int, int]], told: Mapping[str, Mapping[int, int]]
) -> tuple[str, ...]:
    """What differs between the acknowledged answers, the report, and what the channel told last.

    Args:
        report, told: context → option → answers.
    """
    faults = [*votes.faults]
    open_ends = votes.sent - votes.acknowledged - votes.late - len(votes.faults)
    if open_ends:
        faults.append(f"{open_ends} answers were neither acknowledged nor refused")
    for who, counts in (("the report", report), ("the channel", told)):
        for context in sorted({*votes.counted, *counts}):
            found, right = +Counter(counts.get(context, {})), votes.counted.get(context, Counter())
            if found != right:
                faults.append(
                    f"{who} has {_text(found)} of poll {context}, and {_text(right)} were acknowledged"
                )
    return tuple(faults)


def _text(counts: Counter[int]) -> str:
    return " + ".join(f"{counts[option]} for {option}" for option in sorted(counts)) or "none"


@dataclass
class Meter:
    """Deliveries a second over the last minute, and the latest latencies in milliseconds."""

    total: int = 0
    per_s: deque[int] = field(default_factory=lambda: deque(maxlen=_KEPT_S))
    latencies_ms: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT_LATENCIES))
    _this_second: int = 0

    def count(self, latency_ms: float) -> None:
        """Take one delivery."""
        self.total += 1
        self._this_second += 1
        self.latencies_ms.append(latency_ms)

    def tick(self) -> None:
        """A second has passed."""
        self.per_s.append(self._this_second)
        self._this_second = 0

    @property
    def rate(self) -> int:
        """Deliveries of the last whole second."""
        return self.per_s[-1] if self.per_s else 0


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed; 0 without values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)]


def sparkline(values: Sequence[float]) -> str:
    """One bar a value, the highest of them full."""
    top = max(values, default=0)
    if top <= 0:
        return _BARS[0] * len(values)
    return "".join(_BARS[min(len(_BARS) - 1, int(value / top * len(_BARS)))] for value in values)
