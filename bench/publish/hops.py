"""Where the time of one event goes, at a rate that keeps nobody waiting.

Nothing in the product is changed for it. The same event takes ways of different length, and the difference of
two medians is what lies between them:

* by HTTP through the ingress, and by HTTP straight to the replica: the *ingress*;
* straight to the replica, and from a process that calls the owner as a replica does: the *replica*, with
  the client and one connection;
* that call with an event in it, and one that asks the owner for nothing: the *call*, and the *commit*,
  with the owner's planning and the database's answer;
* when the same process, following as a gateway does, hears of the event, half a call and a commit
  after it was sent: the *poll*;
* when the viewers have it: the *send*, with the gateway's log and the client's reading.
"""

from bench.child import Child
from bench.contenders import ROOT
from bench.measure import to_ms
from bench.publish.doors import Doors
from bench.report import Medians, take_median
from bench.rest.instance import join_command, read_environment

PER_S = 50
TURNS = 5
PROBED = ("call", "followed")
"""What the process behind the doors measures besides: a call for nothing, and hearing of the event."""
HOPS = ("ingress", "replica", "call", "commit", "poll", "send")


def measure_hops(doors: Doors, titles: dict[int, str], events: int) -> tuple[dict[str, Medians], list[str]]:
    """What each hop takes, and the whole ways that were measured; milliseconds, and faults.

    The ways take turns, so that whatever else the machine does hits all alike; the first turn warms them up.
    """
    faults: list[str] = []
    turns: list[dict[str, float]] = []
    with Child(join_command(titles, "bench.publish.probe"), ROOT, read_environment(titles)) as probe:
        probe.receive()
        for _ in range(1 + TURNS):
            figures, seen = measure_turn(doors, probe, events // TURNS)
            turns.append(figures)
            faults += seen
    ways = take_median(turns[1:])
    whole = {name: value for name, value in ways.items() if name not in PROBED}
    return {"a single event": divide(ways), "whole ways": whole}, faults


def measure_turn(doors: Doors, probe: Child, events: int) -> tuple[dict[str, float], list[str]]:
    """Way → milliseconds, the median over some events, and faults."""
    figures: dict[str, float] = {}
    faults: list[str] = []
    for door, name in (("HTTP", "HTTP"), ("replica", "past the ingress"), ("WebSocket", "WebSocket")):
        done = doors.publish(door, 1, 1, events, PER_S)
        figures[f"{name} acknowledged_ms"] = to_ms(done.client["p50_us"])
        figures[f"{name} publish→viewer_ms"] = to_ms(done.viewers["latency_p50_us"])
        faults += done.faults
    doors.expect(events)
    probe.send(f"{events} {PER_S}")
    probed = probe.receive()
    report, seen = doors.wait("behind the doors")
    figures |= {name: probed[name] for name in PROBED}
    figures["behind the doors acknowledged_ms"] = probed["published"]
    figures["behind the doors publish→viewer_ms"] = to_ms(report["latency_p50_us"])
    return figures, faults + seen


def divide(ways: dict[str, float]) -> Medians:
    """The hops, from the whole ways."""
    http_ms, replica_ms = ways["HTTP acknowledged_ms"], ways["past the ingress acknowledged_ms"]
    published_ms, viewed_ms = (
        ways[f"behind the doors {end}_ms"] for end in ("acknowledged", "publish→viewer")
    )
    commit_ms = published_ms - ways["call"]
    parts = (
        http_ms - replica_ms,
        replica_ms - published_ms,
        ways["call"],
        commit_ms,
        ways["followed"] - ways["call"] / 2 - commit_ms,
        viewed_ms - ways["followed"],
    )
    return {f"{name}_ms": value for name, value in zip(HOPS, parts, strict=True)}
