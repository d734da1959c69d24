"""Many viewers of ours: gateways and load clients, as many processes as the limit of open files asks for.

One gateway with one load client serves all where a process may have so many descriptors. Where it may not,
several share the viewers evenly, each gateway publishing the same events.
"""

import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any, Self

from bench.child import Child
from bench.contenders import PROGRAM, ROOT, SOURCE_PORTS, Contender, build_load, run_python
from bench.machine import raise_open_files
from bench.measure import find_faults
from broker.deployments.ports import free_port

SPARE_FILES = 200
"""For what a process opens beside its viewers."""
ROUND_S = 120.0

Report = dict[str, Any]


class Crowd:
    """Viewers of one or more programs, connected and subscribed within the `with` block."""

    def __init__(
        self,
        count: int,
        programs: int = 0,
        options: Sequence[str] = (),
        *,
        wishes: str = "",
        gateways: int = 1,
    ) -> None:
        """`programs` of 0 is the one program `bench`; `options` go to the load clients.

        Args:
            wishes: query of the handshake, such as `alive=true`.
            gateways: processes at least, which share the viewers.
        """
        most = min(raise_open_files(count + SPARE_FILES) - SPARE_FILES, -(-count // gateways))
        self._shares = divide(count, most)
        subscribe = '{"programId":"bench-%"}' if programs else PROGRAM
        self._contender = Contender(
            "broker",
            run_python("native", "auto", str(programs)),
            subscribe=subscribe,
            path=f"/api/v1/ws?{wishes}",
        )
        self._options = [*options, "--programs", str(max(1, programs))]
        self._programs = max(1, programs)
        self._stack = ExitStack()
        self._gateways: list[Child] = []
        self._loads: list[Child] = []
        self._ports: list[int] = []
        self.connected: dict[str, float] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for _ in self._shares:
                port = free_port()
                gateway = stack.enter_context(Child(self._contender.command(port), ROOT))
                gateway.receive_serving()
                self._ports.append(port)
                self._gateways.append(gateway)
            before_bytes, before_s, began = self.memory_bytes(), self.cpu_s(), time.monotonic()
            for turn, viewers in enumerate(self._shares):
                sources = 1 + viewers // SOURCE_PORTS
                command = build_load(self._ports[turn], viewers, self._contender, *self._options)
                command += ["--first-source", str(turn * sources)]
                self._loads.append(stack.enter_context(Child(command, ROOT)))
            for load in self._loads:
                load.receive()
            self.connected = {
                "seconds": time.monotonic() - began,
                "cpu_s": self.cpu_s() - before_s,
                "bytes": self.memory_bytes() - before_bytes,
            }
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def gateways(self) -> int:
        """Processes that share the viewers."""
        return len(self._gateways)

    @property
    def port(self) -> int:
        """Of the first gateway."""
        return self._ports[0]

    def cpu_s(self) -> float:
        """CPU seconds of the gateways."""
        return sum(gateway.cpu_s() for gateway in self._gateways)

    def memory_bytes(self) -> int:
        """The gateways' own memory."""
        return sum(gateway.memory_bytes() for gateway in self._gateways)

    def begin_round(self, messages: int, size_bytes: int, interval_us: int, most_s: float = ROUND_S) -> float:
        """Publish `messages` to each program; returns the gateways' CPU seconds before."""
        self._tell(self._loads, f"expect {messages} {most_s}")
        before_s = self.cpu_s()
        self._send(self._gateways, f"publish {messages} {size_bytes} {interval_us}")
        return before_s

    def end_round(self, before_s: float) -> Report:
        """Wait until all have what `begin_round` publishes; what they saw, with the gateways' `cpu_us`."""
        report = join_reports([load.receive() for load in self._loads])
        for gateway in self._gateways:
            gateway.receive()
        return report | {"cpu_us": (self.cpu_s() - before_s) / max(1, report["delivered"]) * 1e6}

    def run_round(self, messages: int, size_bytes: int, interval_us: int) -> Report:
        """Publish, and wait until all have it."""
        return self.end_round(self.begin_round(messages, size_bytes, interval_us))

    def publish_unseen(self, messages: int, size_bytes: int) -> None:
        """Publish while nobody is connected."""
        self._tell(self._gateways, f"publish {messages} {size_bytes} 0")

    def cut(self) -> None:
        """Reset all connections."""
        self._tell(self._loads, "cut")

    def reconnect(self, messages: int) -> Report:
        """Connect all again; each recovers `messages`. The `seconds` are until the last has the last one."""
        before_s, began = self.cpu_s(), time.monotonic()
        self._tell(self._loads, f"reconnect {messages} {ROUND_S}")
        report = join_reports([load.receive() for load in self._loads])
        return report | {"seconds": time.monotonic() - began, "gateway_cpu_s": self.cpu_s() - before_s}

    def stall(self, every: int) -> int:
        """Each `every`-th viewer reads no more; returns how many they are."""
        return sum(answer["viewers"] for answer in self._tell(self._loads, f"stall {every}"))

    def resume(self, seconds: float) -> Report:
        """Those who did not read read again, until they are closed."""
        return join_reports(self._tell(self._loads, f"resume {seconds}"))

    @staticmethod
    def _send(children: Iterable[Child], command: str) -> None:
        for child in children:
            child.send(command)

    @classmethod
    def _tell(cls, children: Sequence[Child], command: str) -> list[Report]:
        """Give all the command before the first answer is awaited."""
        cls._send(children, command)
        return [child.receive() for child in children]


def divide(count: int, most: int) -> list[int]:
    """Shares of `count` that are as even as can be, none of more than `most`.

    Raises:
        ValueError: there is no room for anybody.
    """
    if most < 1:
        raise ValueError("too few files may be open; raise the hard limit (ulimit -Hn)")
    parts = -(-count // most)
    return [count // parts + (turn < count % parts) for turn in range(parts)]


def join_reports(reports: Sequence[Report]) -> Report:
    """One report of several clients: their sums, and of what is not a sum the worst."""
    joined: Report = {}
    for name in reports[0]:
        values = [report[name] for report in reports if report[name] is not None]
        if name == "phase":
            joined[name] = values[0]
        elif name == "seconds" or name == "last_ns" or name.endswith("_us"):
            joined[name] = max(values, default=0)
        else:
            joined[name] = sum(values)
    return joined


def list_faults(what: str, *reports: Report) -> list[str]:
    """What the viewers did not get as they should have."""
    return [fault for report in reports for fault in find_faults(what, report)]
