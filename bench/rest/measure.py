"""Rounds of requests, the bare deployment and the API in turns."""

import itertools
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from bench.child import Child
from bench.contenders import EXAMPLES, ROOT
from bench.product import ProductError, log_in
from bench.rest.cases import Case, prepare
from bench.rest.instance import PARTS, Instance

SIDES = ("bare", "broker")
_SETTLE_S = 0.3
"""Between two rounds: what the one before left behind (statistics, purges) is done."""
_WARM_S = 1.0
_GROWTH_BYTES = 8
"""By which a reply may differ from the first one: an event's `seq` gets longer."""


@dataclass(frozen=True, slots=True)
class Round:
    """One side of one case, for some seconds."""

    case: str
    side: str
    connections: int
    per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: dict[str, float]
    """Part, and `client` → CPU of one request, µs."""


def measure(
    instance: Instance, runs: int, connections: list[int], seconds: float, names: list[str] | None
) -> Iterator[tuple[Case, Round]]:
    """Every case, bare and ours in turns, `runs` times.

    Raises:
        ProductError: a request was refused, or a reply had another size than the bare one.
        ChildError: the client has failed.
    """
    base_url = instance.product.base_url
    with httpx.Client(base_url=base_url, timeout=30) as client:
        client.headers["Authorization"] = f"Bearer {log_in(client, instance.product.password)}"
        cases = prepare(client, names or ())
    with tempfile.TemporaryDirectory(prefix="broker-bench-") as directory, open_load(instance) as load:
        files = write_requests(cases, Path(directory))
        for (case, side), file in files.items():
            run(load, instance, case, side, file, max(connections), _WARM_S)
        for turn in range(runs):
            for case, count in itertools.product(cases, connections):
                # Who goes first changes, so that neither always follows the other's rubbish.
                for side in SIDES if turn % 2 == 0 else SIDES[::-1]:
                    yield case, run(load, instance, case, side, files[case, side], count, seconds)


@contextmanager
def open_load(instance: Instance) -> Iterator[Child]:
    """The client, which keeps its connections from round to round."""
    with Child([EXAMPLES / "http_load", f"127.0.0.1:{instance.product.http_port}"], ROOT) as load:
        yield load


def write_requests(cases: list[Case], directory: Path) -> dict[tuple[Case, str], Path]:
    """The requests of both sides of each case, in files that the client reads."""
    files = {}
    for number, case in enumerate(cases):
        for side, requests in (("bare", case.bare()), ("broker", case.requests)):
            path = directory / f"{number}-{side}.json"
            path.write_text(json.dumps(requests))
            files[case, side] = path
    return files


def run(
    load: Child, instance: Instance, case: Case, side: str, file: Path, connections: int, seconds: float
) -> Round:
    """One round."""
    time.sleep(_SETTLE_S)
    before = instance.cpu_s()
    load.send(f"run {file} {connections} {seconds}")
    report = load.receive()
    after = instance.cpu_s()
    if report["failures"] or abs(report["body_bytes"] - case.body_bytes) > _GROWTH_BYTES:
        raise ProductError(
            f"{case.name}, {side}: {report['failures']} failures, bodies of {report['body_bytes']} instead of"
            f" {case.body_bytes} bytes; {report['first_failure'][-300:]}"
        )
    replies = report["replies"]
    cpu_us = {part: (after[part] - before[part]) / replies * 1e6 for part in (*PARTS, "postgres")}
    cpu_us["client"] = report["cpu_s"] / replies * 1e6
    return Round(
        case.name,
        side,
        connections,
        replies / report["microseconds"] * 1e6,
        report["p50_us"] / 1000,
        report["p99_us"] / 1000,
        cpu_us,
    )
