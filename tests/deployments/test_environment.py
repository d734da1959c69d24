import mmap
import re
import socket
import subprocess
from pathlib import Path

import orjson
import pytest
from ray import _raylet
from ray._private import ray_constants

from broker.deployments import haproxy
from broker.deployments.environment import build_environment
from broker.deployments.ports import free_port, replica_ports, require_free
from broker.deployments.worker_setup import relax
from broker.settings import Settings
from broker.storage.errors import SetupError

CONFIGURATION = """global
    log 127.0.0.1:514 local0 info
    stats socket /x/admin mode 666
frontend prometheus
    bind :9101
frontend http_frontend
    bind 127.0.0.1:8000
    log global
    http-request return status 200 content-type text/plain string "ok" if healthcheck
    errorfile 503 /x/500.http
backend default_backend
    http-request return status 404 content-type text/plain lf-string "Path \'%[path]\' not found. Ping"
backend http-broker
    log global
backend http-other
    log global
listen stats
  bind *:8404
  stats enable
"""


def test_ray_knows_every_setting_that_our_own_ray_is_told(tmp_path: Path) -> None:
    environment, _ = build_environment(Settings(), tmp_path)
    # Those in lower case are read by Ray's native code, which takes no notice of names that it does not know.
    names = {name for name in environment if re.fullmatch(r"RAY_[a-z]\w*", name)}
    assert len(names) > 10
    library = Path(_raylet.__file__)
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        assert {name for name in names if text.find(b"\0%b\0" % name.encode()) < 0} == set()


def test_ray_knows_the_variable_that_names_what_workers_call_first(tmp_path: Path) -> None:
    environment, _ = build_environment(Settings(), tmp_path)
    assert environment[ray_constants.WORKER_PROCESS_SETUP_HOOK_ENV_VAR] == f"{relax.__module__}.relax"


def test_port_that_is_taken_names_the_option() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SetupError, match=f"port {port} .* in use; .* --http-port"):
            require_free("127.0.0.1", port, "--http-port")
    require_free("127.0.0.1", port, "--http-port")


def test_address_that_is_not_ours_is_told_apart_from_a_port_in_use() -> None:
    with pytest.raises(SetupError, match="cannot be used"):
        require_free("192.0.2.77", 8000, "--http-port")


def test_replica_ports_stay_in_their_range() -> None:
    assert replica_ports(0) == (20_000, 20_099)
    assert replica_ports(99) == (29_900, 29_999)
    assert replica_ports(100) == (20_000, 20_099)


def test_free_ports_differ_and_are_none_that_the_system_gives_away() -> None:
    first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    with socket.create_server(("127.0.0.1", free_port())) as server:
        taken = server.getsockname()[1]
        given = [free_port() for _ in range(3_000)]
    assert taken not in given
    assert len(set(given[:1_000])) == 1_000
    assert set(given).isdisjoint(range(int(first), int(last) + 1))


def test_secret_of_our_own_ray_changes_with_each_start(tmp_path: Path) -> None:
    first, _ = build_environment(Settings(), tmp_path)
    second, _ = build_environment(Settings(), tmp_path)
    assert first["RAY_AUTH_MODE"] == "token"
    assert first["RAY_AUTH_TOKEN"] != second["RAY_AUTH_TOKEN"]


def test_ray_of_others_keeps_its_own_authentication(tmp_path: Path) -> None:
    environment, warning = build_environment(Settings(ray_address="127.0.0.1:6379"), tmp_path)
    assert not any(name.startswith("RAY_AUTH") for name in environment)
    assert not warning


def test_machine_without_haproxy_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(haproxy, "find_haproxy", lambda: None)
    environment, warning = build_environment(Settings(), tmp_path)
    assert "HAProxy" in warning
    assert "RAY_SERVE_ENABLE_HA_PROXY" not in environment


def test_haproxy_is_started_without_its_extra_doors(tmp_path: Path) -> None:
    program = tmp_path / "haproxy"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    (tmp_path / "haproxy.cfg").write_text(CONFIGURATION)
    environment = haproxy.serve_environment(program, tmp_path / "ha")
    start = environment["RAY_SERVE_HAPROXY_BINARY_PATH"]
    done = subprocess.run(
        [start, "-db", "-f", tmp_path / "haproxy.cfg", "-sf", "7"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"-db -f {tmp_path}/haproxy.cfg -sf 7\n"
    binds = [line for line in (tmp_path / "haproxy.cfg").read_text().splitlines() if "bind" in line]
    assert binds == [
        f" bind unix@{tmp_path}/ha/figures mode 600",
        "    bind 127.0.0.1:8000",
        f" bind unix@{tmp_path}/ha/page mode 600",
    ]
    assert "514" not in (tmp_path / "haproxy.cfg").read_text()


def test_requests_of_the_api_alone_are_named(tmp_path: Path) -> None:
    (tmp_path / "haproxy.cfg").write_text(CONFIGURATION)
    environment = haproxy.serve_environment(Path("/bin/true"), tmp_path / "ha")
    start = environment["RAY_SERVE_HAPROXY_BINARY_PATH"]
    subprocess.run([start, "-f", tmp_path / "haproxy.cfg"], check=True)
    backends = (tmp_path / "haproxy.cfg").read_text().split("\nbackend ")[1:]
    with_headers = {
        backend.split("\n")[0]: [
            line.partition("set-header ")[2] for line in backend.split("\n") if "set-header" in line
        ]
        for backend in backends
    }
    assert with_headers == {
        "default_backend": [],
        "http-broker": [
            "x-request-id %[uuid] unless { req.hdr(x-request-id) -m found }",
        ],
        "http-other": [],
    }


def test_haproxy_answers_as_we_do_while_there_is_no_replica(tmp_path: Path) -> None:
    (tmp_path / "haproxy.cfg").write_text(CONFIGURATION)
    environment = haproxy.serve_environment(Path("/bin/true"), tmp_path / "ha")
    start = environment["RAY_SERVE_HAPROXY_BINARY_PATH"]
    subprocess.run([start, "-f", tmp_path / "haproxy.cfg"], check=True)
    lines = [line.strip() for line in (tmp_path / "haproxy.cfg").read_text().splitlines()]
    answer = tmp_path / "ha" / "503.http"
    assert f"errorfile 503 {answer}" in lines
    assert f"http-request return status 503 errorfile {answer}" in lines
    head, body = answer.read_bytes().split(b"\r\n\r\n")
    assert b"Content-Length: %d" % len(body) in head
    assert orjson.loads(body)["error"] == "unavailable"


def test_sockets_of_haproxy_fit_into_an_address() -> None:
    environment = haproxy.serve_environment(Path("/bin/true"), Path("/tmp/broker-65534-0123456789"))
    socket_path = Path(environment["RAY_SERVE_HAPROXY_SOCKET_PATH"])
    Path(environment["RAY_SERVE_HAPROXY_BINARY_PATH"]).unlink()
    (socket_path.parent / "503.http").unlink()
    Path("/tmp/broker-65534-0123456789").rmdir()
    # Ray puts the id of the node in between, HAProxy a process number behind; 107 is the limit (unix(7)).
    assert len(f"{socket_path.parent}/{'f' * 56}/{socket_path.name}.4194304.tmp") <= 107
