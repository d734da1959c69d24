"""The long form: `python -m tests.attack [--factors 1,2,4] [NAME …]` prints a table, promise by promise.

Attacks that can be larger are carried out at each factor of their short size; the last column says how the
processor time of the process that spent most grew from the first to the last, where it is enough to tell.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.attack.attack import MIB, Attack, Result, carry_out
from tests.attack.catalogue import ATTACKS
from tests.attack.target import Target, environment_of
from tests.deployments.image_server import ImageServer
from tests.deployments.instance import Instance

_TELLING_S = 0.1  # less is mostly the witness's
_STEEPER = 2.0  # than the input grows: what is quadratic grows with the square


async def attack_all(target: Target, attacks: list[Attack], factors: list[int]) -> bool:
    """Print a row for each attack and factor; true when every promise was kept."""
    print("| who | attack | promise | size | processor time | memory | kept | growth |")
    print("|---|---|---|---|---|---|---|---|")
    is_kept = True
    for attack in attacks:
        results = []
        for factor in factors if attack.is_scaled else factors[:1]:
            share = factor / max(factors) if attack.is_most else factor
            results.append(await carry_out(target, attack, share))
            growth, is_straight = _growth(results)
            faults = results[-1].faults + ([] if is_straight else [f"costs {growth} times as much"])
            is_kept &= not faults
            print(_row(results[-1], growth, faults), flush=True)
    return is_kept


def _growth(results: list[Result]) -> tuple[str, bool]:
    """How much more the last cost than the first, and whether that is no more than its size grew."""
    first, last = results[0], results[-1]
    if len(results) == 1 or first.most_cpu.cpu_s < _TELLING_S:
        return "", True
    ratio = last.most_cpu.cpu_s / first.most_cpu.cpu_s
    return f"{ratio:.1f}", ratio <= _STEEPER * last.size / first.size


def _row(result: Result, growth: str, faults: list[str]) -> str:
    attack, cpu, memory = result.attack, result.most_cpu, result.most_growth
    kept = "yes" if not faults else "; ".join(faults).replace("|", "/").replace("\n", " ")[:300]
    spent = f"{cpu.cpu_s:.2f} s {cpu.kind}"
    gained = f"{memory.growth_bytes / MIB:.0f} MiB {memory.kind}"
    size = f"{result.size:,}"
    row = (attack.who, attack.name, attack.promise, size, spent, gained, kept, growth)
    return "| " + " | ".join(row) + " |"


def main() -> int:
    """Start an instance, attack it, stop it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--factors", default="1,2,4")
    parser.add_argument("names", nargs="*", help="parts of names of attacks")
    options = parser.parse_args()
    attacks = [one for one in ATTACKS if not options.names or any(name in one.name for name in options.names)]
    with (
        tempfile.TemporaryDirectory(prefix="broker-attack-") as directory,
        ImageServer() as image_server,
        Instance(Path(directory) / "data", environment=environment_of(image_server)).running() as instance,
    ):
        target = Target(instance, image_server)
        target.prepare()
        factors = [int(each) for each in options.factors.split(",")]
        is_kept = asyncio.run(attack_all(target, attacks, factors))
        instance.stop()
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
