"""Rehearse a final: a show and its votes, with a fault in each scene, judged at its end: `make gameday`.

The scenes always come in the same order, so that operators can follow them in dashboards and logs beside the
runbooks. `soak` has the same faults in random order, and for longer.
"""

import argparse
import asyncio
import random
import sys
import time
from typing import NamedTuple

from tests.adversity.edits_and_votes import edits_and_votes
from tests.adversity.faults import COUNTER, CUT, kill
from tests.adversity.figures import Fault, table
from tests.adversity.soak import Show, Size, Verdict, on_own_instance, open_show, until
from tests.deployments.instance import Instance

_COUNTER = "counter"


class Scene(NamedTuple):
    """A part of the final, and what fails in it; nothing where `fault` is empty."""

    name: str
    fault: str = ""


FINAL = (
    Scene("the audience arrives"),
    Scene("kick-off", "owner"),
    Scene("a goal", "gateway"),
    Scene("the audience votes", _COUNTER),
    Scene("half-time", "API replica"),
    Scene("second half", CUT),
    Scene("extra time", "PostgreSQL"),
    Scene("penalties", "Ray with everything on it"),
    Scene("the cup is handed over"),
)


async def play(instance: Instance, size: Size, scene_s: float) -> Verdict:
    """Play the final, each scene for at least `scene_s`, its fault in the middle.

    Raises:
        TimeoutError: something was not back within two minutes.
    """
    chance = random.Random(0)
    async with edits_and_votes(instance) as findings, open_show(instance, size) as show:
        for scene in FINAL:
            began_s = time.monotonic()
            await asyncio.sleep(scene_s / 2)
            told = "no fault"
            if scene.fault:
                fault = await _fail(show, scene.fault, chance)
                told = f"{fault.name}: whole again after {fault.over_s - fault.began_s:.1f} s"
            await asyncio.sleep(max(0.0, began_s + scene_s - time.monotonic()))
            _print(f"{scene.name:24} {show.acknowledged:9,} events  {told}")
        _print("judging")
        verdict = await show.close()
    verdict.findings += findings
    return verdict


async def _fail(show: Show, kind: str, chance: random.Random) -> Fault:
    if kind != _COUNTER:
        return await show.suffer([kind], chance)
    began_s = time.monotonic()
    await until(lambda: kill(show.instance, COUNTER))
    await show.until_ready()
    return show.note_fault(kind, began_s)


def report(verdict: Verdict) -> str:
    """What each fault cost, what was wrong, and the verdict in one word."""
    word = "WRONG" if verdict.findings else "RIGHT"
    return "\n".join(
        (
            table(verdict.outages),
            *(f"FINDING {finding}" for finding in verdict.findings),
            f"{word}: {verdict.events:,} events, {verdict.deliveries:,} deliveries,"
            f" {verdict.reconnects:,} reconnects",
        )
    )


def _print(line: str) -> None:
    print(line, flush=True)  # noqa: T201


def main() -> None:
    """The command line of `make gameday`."""
    parser = argparse.ArgumentParser(prog="python -m tests.adversity.gameday", description=__doc__)
    parser.add_argument("--scene", type=float, default=20.0, metavar="S", help="seconds of a scene at least")
    parser.add_argument("--viewers", type=int, default=200)
    parser.add_argument("--programs", type=int, default=4)
    parser.add_argument("--producers", type=int, default=8)
    parser.add_argument("--rate", type=float, default=500, help="events a second at most")
    options = parser.parse_args()
    size = Size(options.producers, options.viewers, options.programs, options.rate, gives_up=0.0)
    verdict = on_own_instance(lambda instance: play(instance, size, options.scene))
    _print(report(verdict))
    sys.exit(bool(verdict.findings))


if __name__ == "__main__":
    main()
