"""What looks wrong in how votes came. Pure: it reads counts, and nothing here knows who voted."""

from collections.abc import Sequence

from broker.domain.values import Model
from broker.storage.polls import PollCount
from broker.storage.vote_patterns import OTHER_NETWORKS, MinuteRow, NetworkRow
from broker.voting.rules import Declaration, Visitors, is_watched

SMALL = 10
"""A network with fewer votes is told with the others only: it may be a household."""
_SHOWN = 20  # networks
_ENOUGH = 100  # votes; in fewer of them nothing is remarkable
_LARGE_SHARE = 0.25
_BURST = 8  # times the typical minute
_ROW_SHARE = 0.05


class IntegrityMinute(Model):
    """Votes in the minute that begins at `timestamp` (ms), and those whose names came in rows."""

    timestamp: int
    votes: int
    in_row: int


class IntegrityEntry(Model):
    """How the votes of one measure in one context came.

    `networks` are the votes of the largest networks, `otherVotes` those of all others. `findings` are
    sentences on what is unusual; none proves fraud, and their absence proves nothing. `isDeclared`: the
    context is an event that declares the measure.
    """

    measure_name: str
    is_declared: bool
    context_id: str
    title: str
    visitors: Visitors
    is_watched: bool
    votes: int
    minutes: list[IntegrityMinute]
    networks: list[int]
    other_votes: int
    in_row: int
    findings: list[str]


class IntegrityReport(Model):
    """How the votes of a program came, by measure and context, in the order in which the first ones came."""

    account_id: str
    project_id: str
    program_id: str
    polls: list[IntegrityEntry]


def examine_votes(
    count: PollCount,
    declared: Declaration,
    required: Visitors,
    minutes: Sequence[MinuteRow],
    networks: Sequence[NetworkRow],
) -> IntegrityEntry:
    """The entry of a poll.

    Args:
        required: of visitors, where the poll says nothing itself.
        minutes: its own, the oldest first.
        networks: its own, the largest first.
    """
    shown = [row.votes for row in networks if row.network != OTHER_NETWORKS and row.votes >= SMALL][:_SHOWN]
    votes = sum(row.votes for row in networks)
    in_row = sum(row.in_row for row in minutes)
    return IntegrityEntry.model_construct(
        measure_name=count.measure,
        is_declared=declared.declares(count.measure),
        context_id=count.context,
        title=declared.title or count.measure,
        visitors=declared.visitors or required,
        is_watched=is_watched(declared, required),
        votes=votes,
        minutes=[
            IntegrityMinute.model_construct(timestamp=row.minute * 60_000, votes=row.votes, in_row=row.in_row)
            for row in minutes
        ],
        networks=shown,
        other_votes=votes - sum(shown),
        in_row=in_row,
        findings=_findings(shown, votes, in_row, [row.votes for row in minutes]),
    )


def _findings(networks: Sequence[int], votes: int, in_row: int, minutes: Sequence[int]) -> list[str]:
    if votes < _ENOUGH:
        return []
    found = []
    if networks and networks[0] >= _LARGE_SHARE * votes:
        found.append(f"One network has sent {networks[0] / votes:.0%} of the votes.")
    typical = sorted(minutes)[len(minutes) // 2]
    most = max(minutes)
    if len(minutes) > 2 and most >= _ENOUGH and most >= _BURST * typical:
        found.append(f"One minute has {most} votes, the typical one {typical}.")
    if in_row >= _ROW_SHARE * votes:
        found.append(f"{in_row / votes:.0%} of the votes come from consecutive names.")
    return found
