"""The stages of a show, as load: who is there, and what happens. Arithmetic only; the locustfile plays it.

A share is one of all users; within a stage it grows or falls evenly to the stage's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

VOTE, GOAL = "vote", "goal"


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a show: its name, how long it takes, and the share of users who are there at its end."""

    name: str
    seconds: float
    share: float


FULL = (
    Stage("arrival", 180, 0.6),
    Stage("kick-off", 60, 1.0),
    Stage(GOAL, 30, 1.0),
    Stage(VOTE, 30, 1.0),
    Stage("end", 60, 0.0),
)
"""Most come early and the others all at once; a goal is a burst of events; then all vote, and leave."""
SHORT = (
    Stage("arrival", 6, 0.6),
    Stage("kick-off", 3, 1.0),
    Stage(GOAL, 4, 1.0),
    Stage(VOTE, 5, 1.0),
    Stage("end", 4, 0.0),
)
"""The same in 22 s: does it work, not how fast."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Where a show is.

    Attributes:
        users: who shall be there, at least one.
        users_per_s: how fast they come or go in this stage.
    """

    stage: Stage
    users: int
    users_per_s: float


def total_s(stages: Sequence[Stage]) -> float:
    """How long a show takes."""
    return sum(stage.seconds for stage in stages)


def find_moment(
    stages: Sequence[Stage], elapsed_s: float, most: int, run_s: float | None = None
) -> Moment | None:
    """Where a show is `elapsed_s` after its start; None when it is over.

    Args:
        most: users at the most.
        run_s: how long it shall take; the stages are stretched to it. None takes them as they are.
    """
    stretch = 1.0 if run_s is None else run_s / total_s(stages)
    began_s, before = 0.0, 0.0
    for stage in stages:
        seconds = stage.seconds * stretch
        if elapsed_s < began_s + seconds:
            part = (elapsed_s - began_s) / seconds
            users = round(most * (before + (stage.share - before) * part))
            return Moment(stage, max(1, users), most * abs(stage.share - before) / seconds)
        began_s, before = began_s + seconds, stage.share
    return None
