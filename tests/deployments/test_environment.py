import contextlib
import mmap
import os
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from subprocess import PIPE

import pytest
from ray import _raylet
from ray._private import ray_constants

from broker.deployments import ports
from broker.deployments.environment import build_environment, joined_environment
from broker.deployments.ingress_key import key_of_cluster
from broker.deployments.port_locks import PortLocks
from broker.deployments.ports import free_port, replica_ports, require_free
from broker.deployments.ray_internals import haproxy
from broker.deployments.worker_setup import relax
from broker.settings import SettingError, Settings
from broker.setup_error import SetupError


def scratch_of(tmp_path: Path, start: str) -> Path:
    """An empty directory for sockets, as each start has one."""
    scratch = tmp_path / start
    scratch.mkdir()
    return scratch


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


def test_internal_port_can_be_bound_as_serve_binds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without SO_REUSEADDR: connections that ended lately keep a port from such a server."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        left = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", left))
        accepted, _ = server.accept()
        accepted.close()  # who closes first keeps the port for a minute (RFC 9293, TIME-WAIT)
        assert client.recv(1) == b""
        client.close()
    monkeypatch.setattr(ports, "_internal_turns", iter([left, free_port()]))
    with socket.socket() as strict:
        strict.bind(("127.0.0.1", ports.internal_port()))


def test_free_ports_differ_and_are_none_that_the_system_gives_away() -> None:
    first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    with socket.create_server(("127.0.0.1", free_port())) as server:
        taken = server.getsockname()[1]
        given = [free_port() for _ in range(3_000)]
    assert taken not in given
    assert len(set(given[:1_000])) == 1_000
    assert set(given).isdisjoint(range(int(first), int(last) + 1))


def test_processes_that_start_at_once_are_given_other_ports() -> None:
    """Nobody listens on them yet: an instance takes seconds from choosing a port to listening on it."""
    code = (
        "from broker.deployments.ports import free_port, internal_port\n"
        "print(*(internal_port() for _ in range(60)), free_port(), flush=True)\n"
        "input()"
    )
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen([sys.executable, "-c", code], stdin=PIPE, stdout=PIPE, text=True)
            )
            for _ in range(4)
        ]
        given = [port for process in processes for port in _line(process).split()]
        held = int(given[-1])
        with pytest.raises(OSError, match="no port"):
            ports._find(iter([held]), range(held, held + 1), ())
        for process in processes:
            process.communicate("\n")
    assert len(given) == 4 * 61
    assert len(set(given)) == len(given)
    assert ports._find(iter([held]), range(held, held + 1), ()) == held


def test_file_of_ports_that_another_user_made_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "target").touch()
    (tmp_path / f"broker-ports-{os.geteuid()}").symlink_to(tmp_path / "target")
    assert PortLocks().take(30_000)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    (tmp_path / "broker-ports-4711").touch(0o600)
    assert PortLocks().take(30_000)


def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_proxy_of_serve_never_gets_a_port_of_an_ingress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def proxy_port(settings: Settings, start: str) -> int:
        environment, _ = build_environment(settings, scratch_of(tmp_path, start))
        return int(environment["RAY_SERVE_FALLBACK_PROXY_HTTP_PORT"])

    # An instance's ports are chosen before anything listens on them, those of a neighbour too.
    chosen = {free_port() for _ in range(3_000)}
    assert {proxy_port(Settings(), f"{start}") for start in range(5)} & chosen == set()
    first = proxy_port(Settings(), "before")
    monkeypatch.setattr(ports, "_internal_turns", iter([first, first + 1, first + 2, first + 3]))
    settings = Settings(http_port=first, ws_port=first + 1, ops_port=first + 2)
    assert proxy_port(settings, "after") == first + 3


@pytest.mark.usefixtures("on_node")
@pytest.mark.parametrize("name", ["http_port", "ws_port", "ops_port"])
def test_ports_of_a_cluster_are_none_of_the_proxy_of_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "theirs")
    ports: dict[str, int] = {"http_port": 8000, "ws_port": 8001, "ops_port": 8050}

    def build(port: int) -> None:
        build_environment(Settings(ray_address="127.0.0.1:6379", **(ports | {name: port})), tmp_path)

    with pytest.raises(SettingError, match=f"BROKER_{name.upper()}: must not be 8500, .* fallback proxy"):
        build(8500)
    build(8501)
    monkeypatch.setenv("RAY_SERVE_FALLBACK_PROXY_HTTP_PORT", "8501")
    build(8500)
    with pytest.raises(SettingError, match="must not be 8501"):
        build(8501)
    # On a Ray of our own the proxy goes elsewhere.
    environment, _ = build_environment(Settings(**(ports | {name: 8500})), scratch_of(tmp_path, "own"))
    assert environment["RAY_SERVE_FALLBACK_PROXY_HTTP_PORT"] != "8500"


def test_secret_of_our_own_ray_changes_with_each_start(tmp_path: Path) -> None:
    first, _ = build_environment(Settings(), scratch_of(tmp_path, "a"))
    second, _ = build_environment(Settings(), scratch_of(tmp_path, "b"))
    assert first["RAY_AUTH_MODE"] == "token"
    assert first["RAY_AUTH_TOKEN"] != second["RAY_AUTH_TOKEN"]


@pytest.fixture
def on_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """The places of the ingress's files, as `deploy/node.env` names them."""
    for name, value in haproxy.ingress_environment(Path(), Path("/run/broker")).items():
        if not name.endswith("_BINARY_PATH"):
            monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("on_node")
def test_ray_of_others_keeps_its_own_authentication(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "theirs")
    environment, warning = build_environment(Settings(ray_address="127.0.0.1:6379"), tmp_path)
    assert [name for name in environment if name.startswith("RAY_AUTH")] == []
    assert not warning


def test_machine_without_haproxy_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(haproxy, "find_haproxy", lambda: None)
    environment, warning = build_environment(Settings(), tmp_path)
    assert "HAProxy" in warning
    assert "RAY_SERVE_ENABLE_HA_PROXY" not in environment


def test_proxy_headers_need_haproxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(haproxy, "find_haproxy", lambda: None)
    settings = Settings(proxy_protocol=("192.0.2.1",), trusted_proxies=("192.0.2.1",))
    with pytest.raises(SettingError, match=r"^BROKER_PROXY_PROTOCOL: must be empty where HAProxy"):
        build_environment(settings, tmp_path)


def test_ray_starts_haproxy_by_our_program(tmp_path: Path) -> None:
    environment = haproxy.install_start_script(tmp_path / "ha")
    start = environment["RAY_SERVE_HAPROXY_BINARY_PATH"]
    done = subprocess.run([start, "-v"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("HAProxy version")
    assert start == str(tmp_path / "ha" / "start")


def test_ingress_of_our_own_ray_has_another_key_with_each_start(tmp_path: Path) -> None:
    environments = [build_environment(Settings(), scratch_of(tmp_path, name))[0] for name in "ab"]
    assert len({environment["BROKER_INGRESS_KEY"] for environment in environments}) == 2
    given, _ = build_environment(Settings(ingress_key="0123456789abcdef"), scratch_of(tmp_path, "c"))
    assert given["BROKER_INGRESS_KEY"] == "0123456789abcdef"


@pytest.mark.usefixtures("on_node")
def test_ingress_of_a_cluster_has_the_same_key_on_every_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(ray_address="127.0.0.1:6379")
    keys = []
    for token in ("one", "one", "two"):
        monkeypatch.setenv("RAY_AUTH_TOKEN", token)
        environment, _ = build_environment(settings, tmp_path)
        keys.append(environment["BROKER_INGRESS_KEY"])
        assert key_of_cluster() == keys[-1]
    assert keys[0] == keys[1] != keys[2]
    assert "one" not in keys[0]


def test_cluster_without_a_token_needs_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(SettingError, match="BROKER_INGRESS_KEY"):
        build_environment(Settings(ray_address="127.0.0.1:6379"), tmp_path)


@pytest.mark.parametrize("given", ["", "broker/haproxy.cfg"])
def test_no_place_is_made_up_for_the_ingress_of_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_node: None, given: str
) -> None:
    """A neighbour could make one that is known before, and Ray writes there before anybody looks."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", "one")
    monkeypatch.setenv("RAY_SERVE_HAPROXY_CONFIG_FILE_LOC", given)
    with pytest.raises(SettingError, match="RAY_SERVE_HAPROXY_CONFIG_FILE_LOC: must name a place"):
        build_environment(Settings(ray_address="127.0.0.1:6379"), tmp_path)


@pytest.mark.usefixtures("on_node")
def test_ingress_of_a_cluster_is_told_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "one")
    settings = Settings(
        ray_address="127.0.0.1:6379", database_url="postgresql://u:secret@h/d", http_port=8123
    )
    environment, _ = build_environment(settings, tmp_path)
    told = joined_environment(settings.to_environment() | environment)
    assert told["BROKER_HTTP_PORT"] == "8123"
    assert told["RAY_SERVE_HAPROXY_BINARY_PATH"].endswith("/broker-ingress")
    assert "secret" not in str(told)
    assert environment["BROKER_INGRESS_KEY"] not in str(told)


def test_sockets_of_haproxy_fit_into_an_address() -> None:
    environment = haproxy.ingress_environment(Path("start"), Path("/tmp/broker-65534-0123456789/ha"))
    socket_path = Path(environment["RAY_SERVE_HAPROXY_SOCKET_PATH"])
    # Ray puts the id of the node in between, HAProxy a process number behind; 107 is the limit (unix(7)).
    assert len(f"{socket_path.parent}/{'f' * 56}/{socket_path.name}.4194304.tmp") <= 107
