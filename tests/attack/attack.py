"""One attack: what it is, what it may cost, and how it is run and judged."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tests.attack.target import Cost, Meter, Target
from tests.attack.wire import Caller
from tests.attack.witness import Witness

MIB = 1 << 20

Run = Callable[[Caller, int], Awaitable[None]]
"""Attacks from one address with so much of it; fails when the product does not keep a promise."""


@dataclass(frozen=True)
class Attack:
    """A row of the table.

    Attributes:
        who: may try it: `stranger`, `tenant`, `role` or `neighbour`.
        promise: what holds nevertheless, as a phrase.
        size: of the short form, in what the attack is counted in.
        cpu_s: processor time that any one process may spend on the short form, with room for a busy machine.
        growth_bytes: memory that any one process may gain meanwhile.
        is_scaled: whether the long form doubles it; what it costs may then grow as it does, not faster.
        is_flat: whether the memory stays within that in the long form, too.
        is_most: whether the size is the most there can be: the long form goes up to it, not beyond.
        may_scale: whether Ray Serve may add API replicas for it, as for anything that is work.
    """

    name: str
    who: str
    promise: str
    run: Run
    size: int = 1
    cpu_s: float = 3.0
    growth_bytes: int = 96 * MIB
    is_scaled: bool = True
    is_flat: bool = False
    is_most: bool = False
    may_scale: bool = True

    @property
    def source(self) -> str:
        """An address of its own, so that limits on others' do not meet."""
        digest = sum(index * byte for index, byte in enumerate(self.name.encode(), 1))
        return f"127.{66 + digest % 100}.{digest // 100 % 250}.{1 + digest % 250}"


@dataclass(frozen=True)
class Result:
    """What an attack did; `faults` is empty when every promise was kept."""

    attack: Attack
    size: int
    costs: list[Cost]
    faults: list[str] = field(default_factory=list)

    @property
    def most_cpu(self) -> Cost:
        return max(self.costs, key=lambda cost: cost.cpu_s)

    @property
    def most_growth(self) -> Cost:
        return max(self.costs, key=lambda cost: cost.growth_bytes)


async def carry_out(target: Target, attack: Attack, factor: float = 1) -> Result:
    """Run an attack, `factor` times its short size, beside a witness."""
    size, faults = int(attack.size * factor), []
    room = max(1, factor)
    async with Witness(target) as witness:
        meter = Meter(target)
        with meter.measured():
            try:
                await attack.run(Caller(target, attack.source), size)
            except AssertionError as error:
                faults.append(str(error))
        await witness.judge()
        meter.see_who_lives(may_scale=attack.may_scale)
    result = Result(attack, size, meter.costs, faults + witness.faults + meter.faults)
    cpu, growth = result.most_cpu, result.most_growth
    if cpu.cpu_s > attack.cpu_s * room:
        result.faults.append(f"{cpu.kind} spent {cpu.cpu_s:.2f} s, allowed are {attack.cpu_s * room:.1f}")
    allowed = attack.growth_bytes * (1 if attack.is_flat else room)
    if growth.growth_bytes > allowed:
        told = f"{growth.growth_bytes / MIB:.0f} MiB, allowed are {allowed / MIB:.0f}"
        result.faults.append(f"{growth.kind} grew by {told}")
    return result
