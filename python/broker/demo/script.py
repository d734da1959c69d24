"""The football final, as cues for the producers: pure, and the same for the same seed.

Time is match time: seconds since kick-off on the referee's clock, breaks included, so that a player of the
script only has to divide by its speed. Teams and players are invented.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

HALF_S = 45 * 60
BREAK_S = 3 * 60  # a real one is 15 minutes, which nobody wants to watch
BUILD_UP_S = 4 * 60
CLOCK_STEP_S = 15
STATS_STEP_S = 60
BANNER_S = 150  # how long a lower third stays on air: five seconds of a demonstration, enough to read it
POLL = "Poll#show"

_FIRST = (
    "Ada",
    "Ben",
    "Cleo",
    "Dan",
    "Eva",
    "Finn",
    "Gus",
    "Hana",
    "Ivo",
    "Jon",
    "Kim",
    "Leo",
    "Mia",
    "Nils",
)
_LAST = ("Abel", "Berg", "Castro", "Dahl", "Ekman", "Faro", "Grau", "Holt", "Ibarra", "Juhl", "Kern", "Lund")
_GOALS = (1, 2, 2, 3, 3, 4, 5)
_ELEVEN = 11
_SQUAD = 16


@dataclass(frozen=True, slots=True)
class Cue:
    """Something to publish at `at_s` of match time; negative before kick-off.

    Attributes:
        answers_s: for how long the audience's answers are taken; 0 for what asks nothing.
    """

    at_s: float
    event: str
    metadata: dict[str, Any] = field(default_factory=dict)
    answers_s: float = 0


@dataclass(frozen=True, slots=True)
class Team:
    """One side; the first eleven of `squad` begin."""

    name: str
    short: str
    squad: tuple[str, ...]


def final(seed: int) -> list[Cue]:
    """The cues of one final, in order of time; it always has a winner."""
    draw = random.Random(seed)  # noqa: S311 - a story, not a secret
    teams = _teams(draw)
    cues = [*_build_up(teams), *_clock(), *_stats(draw), *_cards(draw, teams), *_substitutions(draw, teams)]
    cues += [*_goals(draw, teams), *_polls(draw, teams)]
    cues.append(Cue(_END_S + 60, "Score#hide"))
    return sorted(cues, key=lambda cue: cue.at_s)


_SECOND_HALF_S = HALF_S + BREAK_S
_END_S = _SECOND_HALF_S + HALF_S


def _teams(draw: random.Random) -> tuple[Team, Team]:
    names = [f"{first} {last}" for first in _FIRST for last in _LAST]
    players = draw.sample(names, 2 * _SQUAD)
    return (
        Team("Northport", "NOR", tuple(players[:_SQUAD])),
        Team("Southvale", "SOU", tuple(players[_SQUAD:])),
    )


def _build_up(teams: tuple[Team, Team]) -> Iterator[Cue]:
    yield Cue(-BUILD_UP_S, "Title#show", {"text": "The Final", "venue": "Harbour Stadium"})
    yield Cue(-BUILD_UP_S + 40, "Title#hide")
    for number, team in enumerate(teams):
        begin = -BUILD_UP_S + 60 + 80 * number
        eleven = [{"number": n, "name": name} for n, name in enumerate(team.squad[:_ELEVEN], start=1)]
        yield Cue(begin, "Lineup#show", {"team": team.name, "players": eleven})
        yield Cue(begin + 60, "Lineup#hide", {"team": team.name})
    yield Cue(-10, "Score#show", _score(teams, 0, 0))


def _clock() -> Iterator[Cue]:
    for half, begin in ((1, 0), (2, _SECOND_HALF_S)):
        offset = HALF_S * (half - 1)
        yield Cue(begin, "Clock#start", {"half": half, "clock": _clock_text(offset)})
        for passed in range(CLOCK_STEP_S, HALF_S, CLOCK_STEP_S):
            yield Cue(begin + passed, "Clock#update", {"half": half, "clock": _clock_text(offset + passed)})
        yield Cue(begin + HALF_S, "Clock#stop", {"half": half, "clock": _clock_text(offset + HALF_S)})


def _stats(draw: random.Random) -> Iterator[Cue]:
    shots, possession = [0, 0], 50
    for at_s in range(STATS_STEP_S, _END_S, STATS_STEP_S):
        if HALF_S < at_s < _SECOND_HALF_S:
            continue
        possession = min(65, max(35, possession + draw.randint(-3, 3)))
        shots[draw.randrange(2)] += draw.random() < 0.35
        yield Cue(at_s + 7, "Stats#update", {"possession": [possession, 100 - possession], "shots": [*shots]})
    yield Cue(HALF_S + 20, "Stats#show")
    yield Cue(_SECOND_HALF_S - 20, "Stats#hide")


def _cards(draw: random.Random, teams: tuple[Team, Team]) -> Iterator[Cue]:
    for at_s in sorted(draw.sample(range(8 * 60, _END_S - 120), draw.randint(2, 5))):
        team = draw.choice(teams)
        colour = "red" if draw.random() < 0.1 else "yellow"
        card = {"team": team.name, "player": draw.choice(team.squad[:_ELEVEN]), "colour": colour}
        yield Cue(at_s, "Card#show", card)
        yield Cue(at_s + BANNER_S, "Card#hide", card)


def _substitutions(draw: random.Random, teams: tuple[Team, Team]) -> Iterator[Cue]:
    for team in teams:
        leaving = draw.sample(team.squad[1:_ELEVEN], 3)
        times = sorted(draw.sample(range(_SECOND_HALF_S, _END_S - 300), 3))
        for at_s, out, in_ in zip(times, leaving, team.squad[_ELEVEN:], strict=False):
            yield Cue(at_s, "Substitution#show", {"team": team.name, "out": out, "in": in_})
            yield Cue(at_s + BANNER_S, "Substitution#hide", {"team": team.name})


def _goals(draw: random.Random, teams: tuple[Team, Team]) -> Iterator[Cue]:
    moments = sorted(
        draw.sample([*range(120, HALF_S), *range(_SECOND_HALF_S, _END_S - 240)], draw.choice(_GOALS))
    )
    scorers = [draw.randrange(2) for _ in moments]
    if scorers.count(0) == scorers.count(1):
        moments.append(_END_S - 100)  # a final needs a winner
        scorers.append(draw.randrange(2))
    goals = [0, 0]
    for at_s, side in zip(moments, scorers, strict=True):
        goals[side] += 1
        scorer = draw.choice(teams[side].squad[1:_ELEVEN])
        yield Cue(at_s, "Score#update", _score(teams, *goals))
        yield Cue(
            at_s + 1, "Goal#show", {"team": teams[side].name, "player": scorer, "clock": _match_clock(at_s)}
        )
        yield Cue(at_s + BANNER_S, "Goal#hide", {"team": teams[side].name})
    winner = teams[0] if goals[0] > goals[1] else teams[1]
    yield Cue(_END_S + 20, "Winner#show", {"team": winner.name, "score": goals})


def _polls(draw: random.Random, teams: tuple[Team, Team]) -> Iterator[Cue]:
    players = draw.sample([name for team in teams for name in team.squad[1:_ELEVEN]], 4)
    for at_s, answers_s, measure, title, options in (
        (-BUILD_UP_S + 1, 200, "winner", "Who wins the final?", [team.name for team in teams]),
        (HALF_S + 5, 160, "bestOfHalf", "Who was best in the first half?", players),
        (_END_S + 25, 120, "playerOfTheMatch", "Who is the player of the match?", players),
    ):
        asked = {"title": title, "measureName": measure, "options": options}
        yield Cue(at_s, POLL, asked, answers_s)
        yield Cue(at_s + answers_s + 5, "Poll#hide", {"title": title})


def _score(teams: tuple[Team, Team], home: int, away: int) -> dict[str, Any]:
    return {"home": home, "away": away, "homeTeam": teams[0].short, "awayTeam": teams[1].short}


def _match_clock(at_s: int) -> str:
    return _clock_text(at_s if at_s <= HALF_S else at_s - BREAK_S)


def _clock_text(seconds: int) -> str:
    return f"{seconds // 60:02d}:{seconds % 60:02d}"
