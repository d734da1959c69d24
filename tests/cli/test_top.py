"""`broker top`: figures out of pages of metrics, and the command against servers of such pages."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from broker.cli.fleet import Reading, list_nodes, list_slots, read
from broker.metrics import page
from broker.settings import child_environment

Told = Mapping[tuple[str, str], Mapping[str, Any] | None]
NODE = "a"
BROKER = Path(sys.executable).with_name("broker")


def process(kind: str, *samples: tuple[str, list[str], Any], lag_s: float = 0.001) -> Mapping[str, Any]:
    return {"name": f"{kind}-0", "version": "1", "lag_s": lag_s, "samples": list(samples)}


def page_of(told: Told, monkeypatch: pytest.MonkeyPatch, node: str = NODE) -> str:
    """A page as a node of this name renders it."""
    monkeypatch.setattr("socket.gethostname", lambda: node)
    return page.render(told).decode()


def gateway(
    viewers: int, joined: int, sent: int, delays: list[int], cpu_s: float = 0.0, *, refuses: bool = False
) -> Mapping[str, Any]:
    return process(
        "gateway",
        ("broker_maintenance", [], int(refuses)),
        ("broker_gateway_connections", [], viewers),
        ("broker_gateway_subscriptions", [], viewers),
        ("broker_gateway_handshakes_total", [], joined),
        ("broker_gateway_deliveries_total", [], sent),
        ("broker_gateway_delivery_delay_seconds", [], [*delays, *[0] * (14 - len(delays)), 1.0]),
        ("broker_gateway_loop_lag_seconds", ["0"], 0.002),
        ("broker_gateway_loop_lag_seconds", ["1"], 0.25),
        ("broker_gateway_refused_total", [], 0),
        ("broker_process_cpu_seconds_total", [], cpu_s),
        ("broker_process_resident_memory_bytes", [], 3 << 20),
    )


def owner(slot: str, committed: int, waiting: int = 0) -> Mapping[str, Any]:
    return process(
        "owner",
        ("broker_slot_generation", [slot], 3),
        ("broker_committed_total", [slot], committed),
        ("broker_owner_topics", [], 12),
        ("broker_owner_gateways", [], 2),
        ("broker_queue_length", ["writer"], waiting),
        lag_s=0.5,
    )


def readings(
    monkeypatch: pytest.MonkeyPatch, before: Told, now: Told, seconds: float = 2.0
) -> tuple[Reading, Reading]:
    earlier = read({"u": page_of(before, monkeypatch)}, {}, 10.0)
    return earlier, read({"u": page_of(now, monkeypatch)}, {}, 10.0 + seconds)


def test_counters_become_rates_and_histograms_the_newest_quantile(monkeypatch: pytest.MonkeyPatch) -> None:
    before, now = readings(
        monkeypatch,
        {("gateway", "7"): gateway(100, 1_000, 50_000, [0, 0, 9_999], 5.0)},
        # Of 100 since then 98 took at most 0.1 ms, two at most 1 ms.
        {("gateway", "7"): gateway(110, 1_030, 50_100, [98, 0, 9_999, 2], 6.0)},
    )
    (node,) = list_nodes(now, before)
    assert (node.node, node.viewers, node.memory_bytes) == (NODE, 110, 3 << 20)
    assert (node.joins, node.deliveries, node.cpu) == (15.0, 50.0, 0.5)
    assert (node.delay_p99_s, node.loop_lag_s) == (0.001, 0.25)


def test_without_a_reading_before_there_are_no_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    _, now = readings(monkeypatch, {}, {("gateway", "7"): gateway(1, 1_000, 50_000, [5])})
    (node,) = list_nodes(now, None)
    assert (node.viewers, node.joins, node.delay_p99_s) == (1, None, None)


def test_a_process_that_is_new_counts_from_the_next_reading_on(monkeypatch: pytest.MonkeyPatch) -> None:
    before, now = readings(
        monkeypatch,
        {("gateway", "7"): gateway(1, 1_000, 50_000, [5])},
        {("gateway", "8"): gateway(1, 10, 90, [7])},
    )
    (node,) = list_nodes(now, before)
    assert (node.joins, node.deliveries, node.delay_p99_s) == (0.0, 0.0, None)


def test_slots_are_told_apart_and_come_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = [("owner", str(number)) for number in (1, 2, 3)]
    names = ("owner-10", "owner-9", "owner-0")
    before, now = readings(
        monkeypatch,
        {slot: owner(name, 100) for slot, name in zip(slots, names, strict=True)},
        {slot: owner(name, 100 + int(slot[1]), 4) for slot, name in zip(slots, names, strict=True)},
    )
    found = list_slots(now, before)
    assert [each.slot for each in found] == ["owner-0", "owner-9", "owner-10"]
    assert [each.changes for each in found] == [1.5, 1.0, 0.5]
    first = found[0]
    assert (first.pid, first.topics, first.followers, first.waiting) == ("3", 12, 2, 4)
    assert first.lag_s == 0.5


def test_a_process_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _, now = readings(monkeypatch, {}, {("gateway", "7"): gateway(1, 1, 1, []), ("owner", "9"): None})
    (node,) = list_nodes(now, None)
    assert node.silent == ("owner 9",)


def test_processes_that_refuse_changes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def door(value: int) -> Mapping[str, Any]:
        return process("api", ("broker_maintenance", [], value))

    _, now = readings(monkeypatch, {}, {("api", "1"): door(1), ("api", "2"): door(0), ("owner", "3"): None})
    (node,) = list_nodes(now, None)
    assert (node.refusing, node.doors) == (1, 2)


class _Pages(BaseHTTPRequestHandler):
    """Each request is answered with the next page, and the last again and again."""

    def do_GET(self) -> None:
        pages: list[str] = self.server.pages  # type: ignore[attr-defined]
        body = (pages.pop(0) if len(pages) > 1 else pages[0]).encode()
        self.send_response(200 if self.path == "/metrics" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The addresses of two nodes with a gateway each; the first has an owner that hangs too."""
    servers = []
    for number, node in enumerate(("first", "second"), 1):
        told: list[Told] = [
            {
                ("gateway", "7"): gateway(1_000 * number, 10, sent, [sent], refuses=number == 1),
                **({("owner", "9"): None, ("owner", "8"): owner("owner-0", sent)} if number == 1 else {}),
            }
            for sent in (0, 5_000)
        ]
        server = ThreadingHTTPServer(("127.0.0.1", 0), _Pages)
        server.pages = [page_of(each, monkeypatch, node) for each in told]  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        servers.append(server)
    yield [f"http://127.0.0.1:{server.server_address[1]}" for server in servers]
    for server in servers:
        server.shutdown()
        server.server_close()


def run(*words: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [BROKER, "top", *words, "--every", "0.5"],
        env=child_environment({"COLUMNS": "140"}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_the_fleet_is_shown_with_what_is_missing(nodes: list[str]) -> None:
    away = "http://127.0.0.1:1"
    status, shown, _ = run(*nodes, away, "--once")
    assert status == 0, shown
    lines = shown.splitlines()
    assert lines[0] == "2 nodes, 3,000 viewers"
    assert "maintenance is on: 1 of 2 processes refuse changes" in lines
    assert len([line for line in lines if line.startswith(f"{away}: ")]) == 1
    assert "first: owner 9 does not answer" in lines
    for start in ("first ", "second "):
        (row,) = (line for line in lines if line.startswith(start))
        assert "≤ 0.1 ms" in row
        assert "250 ms" in row
    assert len([line for line in lines if line.startswith("owner-0 ")]) == 1


def test_the_figures_are_json_for_scripts(nodes: list[str]) -> None:
    status, shown, _ = run(*nodes, "--once", "--json")
    assert status == 0
    told = json.loads(shown)
    assert [(each["node"], each["viewers"]) for each in told["nodes"]] == [
        ("first", 1_000),
        ("second", 2_000),
    ]
    assert told["slots"][0]["slot"] == "owner-0"
    assert told["nodes"][0]["deliveries"] > 0
    assert told["failed"] == {}


def test_no_node_is_a_failure_that_says_why() -> None:
    status, shown, told = run("http://127.0.0.1:1", "--once", "--json")
    assert status == 1
    assert json.loads(shown)["nodes"] == []
    assert told.startswith("http://127.0.0.1:1: ")
