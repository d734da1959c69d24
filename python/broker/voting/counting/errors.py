"""Errors of counting, in addition to the broker's general errors."""

from broker.errors import Conflict


class VotingClosed(Conflict):
    """The poll had closed, and its result been called final, before the votes were counted."""

    def __init__(self) -> None:
        super().__init__("voting is closed")
