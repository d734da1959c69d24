"""How many program owners there are, under a version that grows with each change."""

from typing import NamedTuple


class Placement(NamedTuple):
    """What it takes to find the owner of a program."""

    version: int
    owners: int
