"""Two parts die at once, again and again, under many producers and viewers."""

import random
from itertools import repeat

import pytest

from tests.adversity.faults import draw_pair
from tests.adversity.soak import Size, soak
from tests.deployments.instance import Instance

pytestmark = [pytest.mark.anyio, pytest.mark.cluster, pytest.mark.timeout(600)]

SEED = 4


async def test_nothing_is_lost_or_doubled_when_two_die_at_once(instance: Instance) -> None:
    chance = random.Random(SEED)
    # who gives up is waited for at the end; `test_wires` and `make soak` have such producers
    size = Size(producers=20, viewers=40, programs=5, events_per_s=500.0, gives_up=0.0)
    plan = (draw_pair(chance) for _ in repeat(None))
    # cuts lose answers to what was committed, which a fault alone does by a rare chance only
    wires = {"cut_after": (2_000, 100_000), "seed": SEED}
    verdict = await soak(instance, size, plan, chance, events=2_000, faults=4, **wires)
    assert verdict.findings == []
    assert verdict.deliveries == 8 * verdict.pushes
