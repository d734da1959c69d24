"""Where the time of one event goes, at a rate that keeps nobody waiting.

Nothing in the product is changed for it. The same event takes ways of different length, and the difference of
two medians is what lies between them:

* by HTTP through the ingress, and by HTTP straight to the replica: the *ingress*;
* straight to the replica, and from a process that calls the owner as a replica does: the *replica*, with
  the client and one connection;
* that call with an event in it, and one that asks the actor for nothing: the *actor call*, and the *commit*,
  with the owner's planning and the database's answer;
* when the same process, following as a gateway does, hears of the event, half an actor call and a commit
  after it was sent: the *poll*;
* when the viewers have it: the *send*, with the gateway's log and the client's reading.
"""

import json
import statistics

from bench.measure import to_ms
from bench.publish.doors import Doors
from bench.report import Medians
from bench.rest.instance import run_joined

PER_S = 50
HOPS = ("ingress", "replica", "actor call", "commit", "poll", "send")


def measure_hops(doors: Doors, titles: dict[int, str], events: int) -> tuple[dict[str, Medians], list[str]]:
    """What each hop takes, and the whole ways that were measured; milliseconds, and faults."""
    faults: list[str] = []
    ways: dict[str, tuple[float, float]] = {}
    for door in ("HTTP", "replica", "WebSocket"):
        done = doors.publish(door, 1, 1, events, PER_S)
        ways[door] = to_ms(done.client["p50_us"]), to_ms(done.viewers["latency_p50_us"])
        faults += done.faults
    doors.expect(events)
    printed = run_joined(titles, "bench.publish.probe", str(events), str(PER_S))
    probe = {name: statistics.median(values) for name, values in json.loads(printed).items()}
    report, seen = doors.wait("behind the doors")
    probe["viewed"] = to_ms(report["latency_p50_us"])
    return {
        "a single event": divide(ways["HTTP"][0], ways["replica"][0], probe),
        "whole ways": {
            "HTTP acknowledged_ms": ways["HTTP"][0],
            "HTTP publish→viewer_ms": ways["HTTP"][1],
            "past the ingress acknowledged_ms": ways["replica"][0],
            "past the ingress publish→viewer_ms": ways["replica"][1],
            "WebSocket acknowledged_ms": ways["WebSocket"][0],
            "WebSocket publish→viewer_ms": ways["WebSocket"][1],
            "behind the doors acknowledged_ms": probe["published"],
            "behind the doors publish→viewer_ms": probe["viewed"],
        },
    }, faults + seen


def divide(http_ms: float, replica_ms: float, probe: dict[str, float]) -> Medians:
    """The hops, from the whole ways.

    Args:
        probe: `call` for nothing, `published` until answered, `followed` and `viewed` from the same start.
    """
    commit_ms = probe["published"] - probe["call"]
    parts = (
        http_ms - replica_ms,
        replica_ms - probe["published"],
        probe["call"],
        commit_ms,
        probe["followed"] - probe["call"] / 2 - commit_ms,
        probe["viewed"] - probe["followed"],
    )
    return {f"{name}_ms": value for name, value in zip(HOPS, parts, strict=True)}
