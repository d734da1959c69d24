"""For how long no answer is acknowledged when a process dies: `python -m tests.adversity.vote_faults`.

Prints a line for each fault and exits with 1 when a count is not exact.
"""

import asyncio
import secrets
import sys
import tempfile
from pathlib import Path

from tests.adversity.faults import COUNTER, TITLES, kill
from tests.adversity.votes import UNLIMITED, VotingShow
from tests.deployments.instance import Instance

KILLED = {"counter": COUNTER} | {kind: TITLES[kind] for kind in ("API replica", "PostgreSQL")}
_BEFORE_S = 2.0
_TIMES = 3


def main() -> int:
    """Do it; returns the exit status."""
    findings: list[str] = []
    with tempfile.TemporaryDirectory(prefix="broker-votes-") as directory:
        instance = Instance(Path(directory) / "data", environment=UNLIMITED)
        try:
            instance.start()
            print("| what dies | no answer acknowledged |\n|---|---|")  # noqa: T201
            for kind, title in KILLED.items():
                pauses = []
                for _ in range(_TIMES):
                    show = asyncio.run(_vote(instance, title))
                    findings += show.judge()
                    pauses.append(show.longest_pause_s)
                times = ", ".join(f"{pause_s:.1f} s" for pause_s in sorted(pauses))
                print(f"| {kind} | {times} |", flush=True)  # noqa: T201
        finally:
            instance.end()
    print("\n".join(findings) or "every count was exact")  # noqa: T201
    return 1 if findings else 0


async def _vote(instance: Instance, title: str) -> VotingShow:
    show = VotingShow(instance.url, f"vote-{secrets.token_hex(4)}", instance.token())
    disturb = asyncio.Event()
    voting = asyncio.create_task(show.run(disturb, doors=6, after=60))
    await asyncio.sleep(_BEFORE_S)
    assert kill(instance, title), f"no process is called {title}"
    disturb.set()
    await voting
    return show


if __name__ == "__main__":
    sys.exit(main())
