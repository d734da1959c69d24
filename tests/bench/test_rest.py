"""`bench.rest`: what is made of the rounds."""

import io
import json
from pathlib import Path

from rich.console import Console

from bench.rest.cases import bare_request
from bench.rest.command import build_table, find_missed, share, write_json
from bench.rest.measure import Round

FLOORS = {"GET": 0.8, "publish": 0.9}


def one(side: str, per_s: float, case: str = "GET", connections: int = 64) -> Round:
    parts = ("replica", "bare", "ingress", "owner", "counter", "gateway", "postgres", "client")
    return Round(case, side, connections, per_s, 1.0, 2.0, dict.fromkeys(parts, 3.0))


def rounds(case: str, connections: int, *pairs: tuple[float, float]) -> list[Round]:
    return [
        one(side, per_s, case, connections)
        for bare, ours in pairs
        for side, per_s in (("bare", bare), ("broker", ours))
    ]


def test_rounds_are_compared_in_pairs() -> None:
    bare, ours = (
        [one("bare", rate) for rate in (1000, 100, 500)],
        [one("broker", rate) for rate in (900, 80, 250)],
    )
    assert share(bare, ours) == 0.8


def test_a_share_below_its_floor_is_missed() -> None:
    found = rounds("GET", 64, (100, 80)) + rounds("publish", 64, (100, 89)) + rounds("publish", 1, (100, 9))
    assert find_missed(found, FLOORS) == [("publish", 64)]


def test_both_sides_stand_in_a_row() -> None:
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(build_table(rounds("GET", 64, (2000, 1500), (1000, 900)), FLOORS, 2))
    row = next(line for line in console.export_text().splitlines() if "GET" in line)
    cells = [cell.strip() for cell in row.split("│")[1:-1]]
    assert cells[:5] == ["GET", "64", "1,200 (1,500)", "82%", "80%"]


def test_the_bare_deployment_gets_the_same_request() -> None:
    request = "POST /api/v1/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nPOST /a b"
    assert bare_request(request, "/bare/201/5") == request.replace("/api/v1/x", "/bare/201/5")


def test_every_round_is_written_down(tmp_path: Path) -> None:
    path = write_json(tmp_path, {"cores": 2}, rounds("GET", 64, (2, 1)))
    assert [entry["side"] for entry in json.loads(path.read_text())["rounds"]] == ["bare", "broker"]
