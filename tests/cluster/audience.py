"""A large audience on three nodes, beside small ones and votes: `python -m tests.cluster.audience`.

Viewers of one program come to the gateways of two nodes, then as many of each come to that of the third, and
then the viewers of many small programs, while editors and voters are at work whom the judge of
`tests.adversity` watches. What one more gateway takes is compared with what the model of `bench/capacity`
says of it: nothing, since the load of gateways adds up.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import httpx

from bench.child import Child
from bench.contenders import EXAMPLES, ROOT, build_examples
from bench.crowd import Report, join_reports, list_faults
from bench.rest.instance import process_cpu_s
from broker.client import AsyncClient
from tests.adversity.edits_and_votes import edits_and_votes
from tests.cluster.network import HUB, Host, isolated, why_not
from tests.cluster.stage import Stage, find_on, open_stage
from tests.deployments.instance import PASSWORD

_TITLE = "A large audience on three nodes, while many small programs and votes go on."
_INSIDE = "TESTS_ISOLATED"
_FINAL = "audience-final"
_SMALL = "audience-"
_GATEWAY = "ray::GatewayActor"
_MOST_S = 300.0
_SETTLE_S = 15.0  # after the start, for what it leaves to be done later


async def play(viewers: int, programs: int, each: int, events: int, pause_s: float) -> int:
    """Play it; 1 when a viewer missed or doubled anything, or a vote or a change did."""
    settings = {"BROKER_WS_UNLIMITED_ADDRESSES": HUB}
    with (
        tempfile.TemporaryDirectory(prefix="bc-", dir="/tmp", ignore_cleanup_errors=True) as name,
        ExitStack() as loads,
    ):
        async with open_stage(Path(name), **settings) as stage:
            await _make_programs(stage, programs)
            await stage.until_everywhere(_GATEWAY, stage.hosts)
            await asyncio.sleep(_SETTLE_S)
            share = viewers // len(stage.hosts)
            final: list[Child] = []
            reports: list[tuple[str, Report]] = []
            cpu_s: dict[int, float] = {}
            for count in (2, 3):
                began_s = time.monotonic()
                for host in stage.hosts[len(final) : count]:
                    final.append(loads.enter_context(_load(stage, host, share, _FINAL)))
                    await asyncio.to_thread(final[-1].receive)
                _say(f"{share * count:,} viewers on {count} nodes, the last after {_since(began_s)}")
                report, cpu_s[count] = await _publish(stage, final, events, pause_s)
                reports.append((f"{count} nodes", report))
                _tell(f"{count} nodes", report, cpu_s[count])
            deviation = 1.5 * cpu_s[2] / cpu_s[3] - 1
            _say(f"three gateways, predicted from two: {1.5 * cpu_s[2]:.2f} CPU s, off by {deviation:+.1%}")
            small = [
                loads.enter_context(
                    _load(stage, host, programs * each // len(stage.hosts), f"{_SMALL}%", programs)
                )
                for host in stage.hosts
            ]
            for load in small:
                await asyncio.to_thread(load.receive)
            _say(f"{programs} programs with {each} viewers each, over all nodes")
            async with edits_and_votes(stage.instance) as findings:
                both = asyncio.gather(
                    _publish(stage, final, events, pause_s),
                    _publish(stage, small, events, pause_s, programs),
                )
                for title, (report, gateways_s) in zip(
                    ("the program", "small programs"), await both, strict=True
                ):
                    reports.append((title, report))
                    _tell(f"{title}, with editors and voters", report, gateways_s)
            findings += [fault for title, report in reports for fault in list_faults(title, report)]
    for finding in findings:
        _say(f"FINDING {finding}")
    _say("WRONG" if findings else "RIGHT")
    return bool(findings)


async def _make_programs(stage: Stage, programs: int) -> None:
    token = await asyncio.to_thread(stage.instance.token)
    async with httpx.AsyncClient(
        base_url=f"{stage.instance.url}/api/v1", headers=token, timeout=30
    ) as client:
        for program_id in (_FINAL, *(f"{_SMALL}{number}" for number in range(programs))):
            reply = await client.post("/programs", json={"id": program_id, "name": program_id})
            reply.raise_for_status()


def _load(stage: Stage, host: Host, viewers: int, program: str, programs: int = 1) -> Child:
    """Viewers that come to the gateway of a host."""
    command: list[str | Path] = [EXAMPLES / "load", f"{host.ip}:{stage.instance.ws_port}"]
    command += ["--connections", str(viewers), "--path", "/api/v1/ws", "--programs", str(programs)]
    command += ["--subscribe", f'{{"programId":"{program}"}}']
    return Child(command, ROOT)


async def _publish(
    stage: Stage, loads: Sequence[Child], events: int, pause_s: float, programs: int = 0
) -> tuple[Report, float]:
    """Publish evenly to one program, or to so many; what viewers saw, and the gateways' CPU seconds."""
    for load in loads:
        load.send(f"expect {events} {_MOST_S}")
        await asyncio.to_thread(load.receive)
    names = [f"{_SMALL}{number}" for number in range(programs)] or [_FINAL]
    before_s = _gateways_cpu_s(stage)
    async with AsyncClient(stage.instance.url, username="admin", password=PASSWORD) as client:
        begun_s = time.monotonic()
        for turn in range(events * len(names)):
            await asyncio.sleep(begun_s + turn * pause_s / len(names) - time.monotonic())
            metadata = {"sent": time.monotonic_ns(), "text": "x" * 200}
            await client.publish(names[turn % len(names)], "Score#update", metadata)
    reports = [await asyncio.to_thread(load.receive) for load in loads]
    return join_reports(reports), _gateways_cpu_s(stage) - before_s


def _gateways_cpu_s(stage: Stage) -> float:
    return sum(process_cpu_s(pid) for host in stage.hosts for pid in find_on(host, _GATEWAY))


def _tell(title: str, report: Report, gateways_s: float) -> None:
    late_ms = [report[name] / 1000 for name in ("latency_p50_us", "latency_p99_us", "last_viewer_p50_us")]
    _say(
        f"{title}: {report['delivered']:,} deliveries in {report['seconds']:.1f} s, p50 {late_ms[0]:.0f} ms,"
        f" p99 {late_ms[1]:.0f} ms, last viewer {late_ms[2]:.0f} ms; gateways {gateways_s:.2f} CPU s"
    )


def _since(began_s: float) -> str:
    return f"{time.monotonic() - began_s:.1f} s"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.audience", description=_TITLE)
    parser.add_argument("--viewers", type=int, default=30_000, help="of one program, over three nodes")
    parser.add_argument("--programs", type=int, default=100, help="small ones beside it")
    parser.add_argument("--each", type=int, default=100, help="viewers of each of these")
    parser.add_argument("--events", type=int, default=30, help="of each program, in each part")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two of a program")
    options = parser.parse_args()
    if os.environ.get(_INSIDE):
        words = (options.viewers, options.programs, options.each, options.events, options.pause)
        return asyncio.run(play(*words))
    if reason := why_not():
        _say(f"nodes cannot have addresses of their own here: {reason}")
        return 2
    build_examples()
    command = isolated([sys.executable, "-m", "tests.cluster.audience", *sys.argv[1:]])
    return subprocess.run(command, env={**os.environ, _INSIDE: "1"}, check=False).returncode


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
