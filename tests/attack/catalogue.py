"""All attacks, in the order in which they are tried."""

from tests.attack import neighbour, refused, role, scarce, stranger, tenant, visitors
from tests.attack.attack import Attack

ATTACKS: tuple[Attack, ...] = (
    *neighbour.ATTACKS,
    *tenant.ATTACKS,
    *role.ATTACKS,
    *refused.ATTACKS,
    *stranger.ATTACKS,
    *visitors.ATTACKS,
    *scarce.ATTACKS,
)
