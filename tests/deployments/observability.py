"""Rules and dashboards against a real Prometheus that scrapes the demonstration: `make observability`.

Prometheus and promtool are Debian's, unpacked below `.build` without root. The demonstration plays a final to
viewers and voters meanwhile. It fails where a rule or a test of the rules is wrong, a name of a metric goes
against the conventions, or a query of a panel or rule is an error or brings nothing.
"""

import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil

from broker.deployments.ports import free_port
from tests.deployments.dashboards import read_queries
from tests.deployments.rules import RULES, read_rules

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / ".build" / "prometheus"
_START_S = 60.0
_PLAY_S = 180
_PATIENCE_S = 100.0  # until every query has brought something
_LOOK_S = 5.0


def main() -> None:
    """Check everything, and end with 1 when something is wrong."""
    prometheus, promtool = find_tools()
    rules = [RULES / "recording.yml", RULES / "alerts.yml"]
    _run([promtool, "check", "rules", *rules])
    _run([promtool, "test", "rules", RULES / "alerts_test.yml"])
    with tempfile.TemporaryDirectory(prefix="broker-seen-") as scratch:
        http_port, port = free_port(), free_port()
        with (
            _demo(Path(scratch) / "data", http_port) as ops_port,
            _scraping(prometheus, Path(scratch), ops_port, port),
        ):
            faults = _await_queries(f"http://127.0.0.1:{port}", _image_url(http_port))
            page = _read_page(ops_port)
    count = len(list(read_queries()))
    _say(f"{count} queries of panels and {len(read_rules())} rules, {len(faults)} faults")
    for fault in faults:
        _say(f"  {fault}")
    _run([promtool, "check", "metrics"], page)
    sys.exit(bool(faults))


def find_tools() -> tuple[str, str]:
    """Paths of Prometheus and promtool: those of this machine, or Debian's. Exits where there are none."""
    found = find_tool("prometheus"), find_tool("promtool")
    if found[0] is None or found[1] is None:
        TOOLS.mkdir(parents=True, exist_ok=True)
        try:
            subprocess.run(["apt-get", "-qq", "download", "prometheus"], cwd=TOOLS, check=True)
            (package,) = TOOLS.glob("prometheus_*.deb")
            subprocess.run(["dpkg", "-x", package, TOOLS], check=True)
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            sys.exit(f"error: install Prometheus and promtool; Debian's package cannot be had here: {error}")
        found = find_tool("prometheus"), find_tool("promtool")
    return found[0] or "prometheus", found[1] or "promtool"


def find_tool(name: str) -> str | None:
    """The path of a tool of this machine, or of Debian's where that has been unpacked."""
    return shutil.which(name) or shutil.which(name, path=str(TOOLS / "usr" / "bin"))


@contextmanager
def _demo(data_dir: Path, http_port: int) -> Iterator[int]:
    """The demonstration, on ports of its own; gives the one for operators, which it chooses."""
    script = Path(sys.executable).with_name("broker")
    ports = ["--http-port", str(http_port), "--ws-port", str(free_port())]
    options = ["--seconds", str(_PLAY_S), "--viewers", "50", "--voters", "100", "--speed", "60"]
    process = subprocess.Popen(
        [script, "demo", "--data-dir", str(data_dir), *ports, *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        yield _ops_port(process.pid)
    finally:
        _end(process)


def _ops_port(pid: int) -> int:
    """The port for operators of the product that a process starts."""
    deadline_s = time.monotonic() + _START_S
    while time.monotonic() < deadline_s:
        for child in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):
                if port := child.environ().get("BROKER_OPS_PORT"):
                    return int(port)
        time.sleep(0.1)
    sys.exit("error: the demonstration does not start")


def _image_url(http_port: int) -> str:
    """That of an image that the proxy refuses: the demonstration itself may have all of its own at hand."""
    return f"http://127.0.0.1:{http_port}/api/v2/imgproxy/demo/-?url=http%3A%2F%2F127.0.0.1%2Fa.png"


def _read_page(ops_port: int) -> bytes:
    try:
        return httpx.get(f"http://127.0.0.1:{ops_port}/metrics", timeout=20).raise_for_status().content
    except httpx.HTTPError as error:
        return f"no page: {error!r}".encode()  # which promtool refuses


@contextmanager
def _scraping(prometheus: str, scratch: Path, ops_port: int, port: int) -> Iterator[None]:
    """A Prometheus with our rules, which scrapes every second. What it writes goes to a file."""
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(path) for path in (RULES / "recording.yml", RULES / "alerts.yml")],
        "scrape_configs": [
            {"job_name": "broker", "static_configs": [{"targets": [f"127.0.0.1:{ops_port}"]}]}
        ],
    }
    (scratch / "prometheus.yml").write_text(json.dumps(configuration))  # JSON is YAML
    with (scratch / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [
                prometheus,
                f"--config.file={scratch / 'prometheus.yml'}",
                f"--storage.tsdb.path={scratch / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={"PATH": os.environ["PATH"]},
        )
    try:
        yield
    finally:
        _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _await_queries(url: str, image_url: str) -> list[str]:
    """What is wrong with rules and queries, when nothing is or the time is over. Asks for an image too."""
    deadline_s = time.monotonic() + _PATIENCE_S
    faults = ["Prometheus does not answer"]
    with httpx.Client(base_url=url, timeout=20) as client:
        while faults and time.monotonic() < deadline_s:
            time.sleep(_LOOK_S)
            with suppress(httpx.HTTPError):  # until the product serves
                httpx.get(image_url, timeout=20)
            try:
                faults = [*_wrong_panels(client), *_wrong_rules(client)]
            except httpx.TransportError as error:
                faults = [f"Prometheus does not answer: {error!r}"]
    return faults


def _wrong_panels(client: httpx.Client) -> Iterator[str]:
    for query in read_queries():
        if fault := _fault(client, query.text):
            yield f"{query.dashboard} / {query.panel}: {fault}: {query.text}"


def _wrong_rules(client: httpx.Client) -> Iterator[str]:
    """Rules that Prometheus cannot evaluate, record nothing, or ask for metrics that nobody has."""
    groups = client.get("/api/v1/rules").raise_for_status().json()["data"]["groups"]
    states = {rule["name"]: rule for group in groups for rule in group["rules"]}
    for rule in read_rules():
        state = states.get(rule.name, {"health": "missing"})
        if state["health"] != "ok":
            yield f"{rule.name}: {state['health']} {state.get('lastError', '')}"
        # An alert brings nothing while all is well, so its metrics are asked for.
        texts = [rule.name] if not rule.is_alert else re.findall(r"\b(?:\w+:)?broker[\w:]+", rule.text)
        for text in texts:
            if fault := _fault(client, text):
                yield f"{rule.name}: {fault}: {text}"


def _fault(client: httpx.Client, query: str) -> str:
    """What is wrong with the answer to a query, empty when nothing is."""
    told: dict[str, Any] = client.get("/api/v1/query", params={"query": query}).json()
    if told["status"] != "success":
        return str(told["error"])
    values = [float(series["value"][1]) for series in told["data"]["result"]]
    return "" if any(math.isfinite(value) for value in values) else "brings nothing"


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _run(command: list[str | Path], given: bytes = b"") -> None:
    """Run a tool in sight of whoever reads; exit where it finds faults."""
    _say(" ".join(["$", *(Path(part).name for part in command)]))
    done = subprocess.run(command, input=given, check=False)
    if done.returncode:
        sys.exit(f"error: {Path(str(command[0])).name} has found faults")


if __name__ == "__main__":
    main()
