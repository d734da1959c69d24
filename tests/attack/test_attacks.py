"""The short form: every attack once, on one instance."""

import pytest

from tests.attack.attack import Attack, carry_out
from tests.attack.catalogue import ATTACKS
from tests.attack.target import Target

pytestmark = [pytest.mark.cluster, pytest.mark.anyio, pytest.mark.timeout(300)]


@pytest.mark.parametrize("attack", [pytest.param(one, id=f"{one.who}: {one.name}") for one in ATTACKS])
async def test_the_promise_is_kept(target: Target, attack: Attack) -> None:
    result = await carry_out(target, attack)
    assert not result.faults, result.faults
