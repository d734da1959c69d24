"""Three nodes, and what can happen to them while a show goes on: `make cluster`.

Each node is a host with an address of its own (`network`). Under producers, viewers, editors and voters a
node dies and comes back, one is cut off and comes back, the way between two becomes slow and loses packets,
gateways die, the head dies with its GCS, and all code is exchanged. The judge of `tests.adversity` says what
was lost, doubled or out of order.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.adversity.edits_and_votes import edits_and_votes
from tests.adversity.figures import table
from tests.adversity.producers import PASSING
from tests.adversity.soak import Show, Size, open_show
from tests.cluster.network import run_isolated
from tests.cluster.scenes import SCENES
from tests.cluster.stage import Stage, open_stage

_TITLE = "Three nodes, and what can happen to them while a show goes on."
_REST_S = 2.0  # between two scenes, so that no pause belongs to both
_SIZE = Size(producers=10, viewers=30, programs=6, events_per_s=300.0)


async def play(names: list[str], relay_from: str) -> int:
    """Play scenes; 1 when anything was wrong."""
    with tempfile.TemporaryDirectory(prefix="bc-", dir="/tmp", ignore_cleanup_errors=True) as name:
        began_s = time.monotonic()
        async with open_stage(Path(name), BROKER_RELAY_FROM=relay_from) as stage:
            _say(f"{time.monotonic() - began_s:6.1f} s  three nodes run the product")
            try:
                async with open_show(stage.instance, _SIZE, passing=PASSING) as show:
                    async with edits_and_votes(stage.instance) as findings:
                        for scene in names:
                            await _play_one(SCENES[scene], stage, show, scene, began_s)
                    verdict = await show.close()
            except BaseException:
                _say(stage.instance.log())
                raise
    findings += verdict.findings
    for fault, publish_s, delivery_s in verdict.outages:
        _say(
            f"{fault.name}: nothing published for {publish_s:.2f} s, nothing delivered for {delivery_s:.2f} s"
        )
    _say(table(verdict.outages))
    for finding in findings:
        _say(f"FINDING {finding}")
    _say(
        f"{'WRONG' if findings else 'RIGHT'}: {verdict.events:,} events stored, {verdict.deliveries:,}"
        f" deliveries, {verdict.reconnects:,} reconnects"
    )
    return bool(findings)


async def _play_one(
    scene: Callable[[Stage, Show], Awaitable[None]], stage: Stage, show: Show, name: str, began_s: float
) -> None:
    before_s = time.monotonic()
    await scene(stage, show)
    await show.until_at_work(time.monotonic())
    fault = show.note_fault(name, before_s)
    await asyncio.sleep(_REST_S)
    _say(f"{time.monotonic() - began_s:6.1f} s  {name}: {fault.over_s - fault.began_s:.1f} s until whole")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=_TITLE)
    parser.add_argument(
        "scenes", nargs="*", help=f"of: {', '.join(SCENES)}; all without any", metavar="SCENE"
    )
    parser.add_argument(
        "--relay-from", default="0", help="with so many gateways some feed the others; 0, the default: never"
    )
    options = parser.parse_args()
    names = options.scenes or list(SCENES)
    if unknown := set(names) - set(SCENES):
        parser.error(f"there is no scene {', '.join(sorted(unknown))}")
    words = ["--relay-from", options.relay_from, *names]
    return run_isolated("tests.cluster", words, lambda: asyncio.run(play(names, options.relay_from)))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
