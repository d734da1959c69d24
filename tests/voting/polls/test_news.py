"""`broker.voting.polls.news`."""

from typing import Any, cast

import pytest

from broker.voting.polls.news import VoteNews
from tests.auth.services import StoppedClock

pytestmark = pytest.mark.anyio


class Told:
    """Owners that note what they are told."""

    def __init__(self) -> None:
        self.programs: list[str] = []

    async def votes_counted(self, account: str, program_id: str) -> None:
        self.programs.append(f"{account}/{program_id}")


async def test_a_program_is_told_twice_a_second_at_most() -> None:
    clock, told = StoppedClock(), Told()
    news = VoteNews(cast("Any", told), clock)
    for forward_ms in (0, 0, 499, 1, 100, 400):
        clock.ms += forward_ms
        await news.tell("demo", "p")
    assert told.programs == ["demo/p"] * 3


async def test_programs_and_accounts_are_told_apart() -> None:
    told = Told()
    news = VoteNews(cast("Any", told), StoppedClock())
    for account, program in (("demo", "p"), ("demo", "q"), ("other", "p"), ("demo", "p")):
        await news.tell(account, program)
    assert told.programs == ["demo/p", "demo/q", "other/p"]
