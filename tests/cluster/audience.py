"""A large audience on three nodes, beside small ones and votes: `python -m tests.cluster.audience`.

Viewers of one program come to the gateways of two nodes, then as many of each come to that of the third, and
then the viewers of many small programs, while editors and voters are at work whom the judge of
`tests.adversity` watches. What one more gateway takes is compared with what the model of `bench/capacity`
says of it: nothing, since the load of gateways adds up.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx

from bench.child import Child
from bench.contenders import EXAMPLES, ROOT, build_examples
from bench.crowd import Report, join_reports, list_faults
from bench.rest.instance import process_cpu_s
from broker.client import AsyncClient
from tests.adversity.edits_and_votes import edits_and_votes
from tests.cluster.network import HUB, Host, run_isolated
from tests.cluster.stage import Stage, find_on, open_stage
from tests.deployments.instance import PASSWORD

_TITLE = "A large audience on three nodes, while many small programs and votes go on."
_FINAL = "audience-final"
_SMALL = "audience-"
_GATEWAY = "ray::GatewayActor"
_MOST_S = 300.0
_SETTLE_S = 15.0  # after the start, for what it leaves to be done later


@dataclass(frozen=True, slots=True)
class Audience:
    """How large it is.

    Attributes:
        viewers: of one program, over all nodes.
        programs: small ones beside it, with `each` viewers.
        events: of each program, in each part, with `pause_s` between two.
    """

    viewers: int
    programs: int
    each: int
    events: int
    pause_s: float


async def play(audience: Audience) -> int:
    """Play it; 1 when a viewer missed or doubled anything, or a vote or a change did."""
    with (
        tempfile.TemporaryDirectory(prefix="bc-", dir="/tmp", ignore_cleanup_errors=True) as name,
        ExitStack() as loads,
    ):
        async with open_stage(Path(name), BROKER_WS_UNLIMITED_ADDRESSES=HUB) as stage:
            await _make_programs(stage, audience.programs)
            await stage.until_everywhere(_GATEWAY, stage.hosts)
            await asyncio.sleep(_SETTLE_S)
            final, findings = await _fill_nodes(stage, audience, loads)
            findings += await _add_programs(stage, audience, loads, final)
    for finding in findings:
        _say(f"FINDING {finding}")
    _say("WRONG" if findings else "RIGHT")
    return bool(findings)


async def _fill_nodes(stage: Stage, audience: Audience, loads: ExitStack) -> tuple[list[Child], list[str]]:
    """Viewers of one program at two nodes, then at the third too; the clients, and what was wrong."""
    share = audience.viewers // len(stage.hosts)
    final: list[Child] = []
    findings: list[str] = []
    cpu_s: dict[int, float] = {}
    for count in (2, 3):
        began_s = time.monotonic()
        for host in stage.hosts[len(final) : count]:
            final.append(loads.enter_context(_load(stage, host, share, _FINAL)))
            await asyncio.to_thread(final[-1].receive)
        _say(f"{share * count:,} viewers on {count} nodes, the last after {_since(began_s)}")
        report, cpu_s[count] = await _publish(stage, audience, final)
        findings += _judge(f"{count} nodes", report, cpu_s[count])
    predicted_s, measured_s = 1.5 * cpu_s[2], cpu_s[3]
    off = f"{predicted_s / measured_s - 1:+.1%}"
    _say(f"three gateways, predicted from two: {predicted_s:.2f} CPU s, off by {off}")
    return final, findings


async def _add_programs(
    stage: Stage, audience: Audience, loads: ExitStack, final: Sequence[Child]
) -> list[str]:
    """Small programs beside the large one, with editors and voters; what was wrong."""
    count, share = audience.programs, audience.programs * audience.each // len(stage.hosts)
    small = [loads.enter_context(_load(stage, host, share, f"{_SMALL}%", count)) for host in stage.hosts]
    for load in small:
        await asyncio.to_thread(load.receive)
    _say(f"{count} programs with {audience.each} viewers each, over all nodes")
    async with edits_and_votes(stage.instance) as findings:
        one, many = await asyncio.gather(
            _publish(stage, audience, final), _publish(stage, audience, small, count)
        )
    findings += _judge("the program, with editors and voters", *one)
    return findings + _judge("small programs, with editors and voters", *many)


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
    stage: Stage, audience: Audience, loads: Sequence[Child], programs: int = 0
) -> tuple[Report, float]:
    """Publish evenly to one program, or to so many; what viewers saw, and the gateways' CPU seconds."""
    for load in loads:
        load.send(f"expect {audience.events} {_MOST_S}")
        await asyncio.to_thread(load.receive)
    names = [f"{_SMALL}{number}" for number in range(programs)] or [_FINAL]
    before_s = _gateways_cpu_s(stage)
    async with AsyncClient(stage.instance.url, username="admin", password=PASSWORD) as client:
        begun_s = time.monotonic()
        for turn in range(audience.events * len(names)):
            await asyncio.sleep(begun_s + turn * audience.pause_s / len(names) - time.monotonic())
            metadata = {"sent": time.monotonic_ns(), "text": "x" * 200}
            await client.publish(names[turn % len(names)], "Score#update", metadata)
    reports = [await asyncio.to_thread(load.receive) for load in loads]
    return join_reports(reports), _gateways_cpu_s(stage) - before_s


def _gateways_cpu_s(stage: Stage) -> float:
    return sum(process_cpu_s(pid) for host in stage.hosts for pid in find_on(host, _GATEWAY))


def _judge(title: str, report: Report, gateways_s: float) -> list[str]:
    """Tell what viewers saw; returns what was wrong with it."""
    late_ms = [report[name] / 1000 for name in ("latency_p50_us", "latency_p99_us", "last_viewer_p50_us")]
    _say(
        f"{title}: {report['delivered']:,} deliveries in {report['seconds']:.1f} s, p50 {late_ms[0]:.0f} ms,"
        f" p99 {late_ms[1]:.0f} ms, last viewer {late_ms[2]:.0f} ms; gateways {gateways_s:.2f} CPU s"
    )
    return list_faults(title, report)


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
    build_examples()
    audience = Audience(options.viewers, options.programs, options.each, options.events, options.pause)
    return run_isolated("tests.cluster.audience", sys.argv[1:], lambda: asyncio.run(play(audience)))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
