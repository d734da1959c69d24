"""What another user of the same machine gets of a running instance: nothing."""

import json
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import grpc
import httpx
import psutil
import pytest

from broker.deployments.private_paths import require_private
from tests.deployments.instance import PASSWORD, Instance

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

STRANGER = 64_999  # a user that owns nothing, and has no account
LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
# A call of Ray's that ends a process which does not look at the secret first.
SYNCER = "/ray.rpc.syncer.RaySyncer/StartSync"
CALL_S = 120.0  # a call that is let in has no end; one that is not fails at once on a machine that has time
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


def list_processes(instance: Instance) -> list[psutil.Process]:
    """All processes of the instance: `broker up`, what it started, PostgreSQL's."""
    up = psutil.Process(instance.process.pid)
    pids = {up.pid, *instance.processes(), *(child.pid for child in up.children(recursive=True))}
    found = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):  # PostgreSQL's and workers that wait come and go
            found.append(psutil.Process(pid))
    return found


def list_ray(instance: Instance) -> dict[int, str]:
    """Ray's own processes and the actors on it, by their ids, without workers that wait."""
    names = {}
    for process in list_processes(instance):
        with suppress(psutil.NoSuchProcess):
            names[process.pid] = process.name()
    return {
        pid: name
        for pid, name in names.items()
        if name.startswith(("gcs_server", "raylet", "ray::")) and name != "ray::IDLE"
    }


def list_standbys(instance: Instance) -> set[int]:
    """What waits in the places of Ray's helpers (`broker.deployments.ray_internals.standby`)."""
    found = set()
    for process in list_processes(instance):
        with suppress(psutil.NoSuchProcess):
            if any(word.endswith("standby.py") for word in process.cmdline()[:5]):
                found.add(process.pid)
    return found


def list_listening(instance: Instance) -> list[tuple[str, str, int]]:
    """Name, address and port of each TCP socket that listens and of each UDP socket, of both families."""
    listening = []
    for process in list_processes(instance):
        with suppress(psutil.NoSuchProcess):
            listening += [
                (process.name(), connection.laddr.ip, connection.laddr.port)
                for connection in process.net_connections("inet")
                if connection.laddr
                and (connection.type == socket.SOCK_DGRAM or connection.status == psutil.CONN_LISTEN)
            ]
    return listening


def list_files(instance: Instance) -> list[Path]:
    assert instance.scratch is not None
    roots = [instance.data_dir, instance.scratch]
    return [*roots, *(path for root in roots for path in root.rglob("*"))]


def as_stranger(look: Callable[[], list[str]]) -> list[str]:
    """What `look` returns in a process of another user; forked, since that one may not reach Python."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(STRANGER)
            os.setuid(STRANGER)
            os.write(theirs, json.dumps(look()).encode())
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as told:
        found: list[str] = json.loads(told.read())
    os.waitpid(child, 0)
    return found


def is_allowed(attempt: Callable[[Path], None], path: Path) -> bool:
    try:
        attempt(path)
    except (PermissionError, FileNotFoundError, ProcessLookupError):  # closed, or gone meanwhile
        return False
    except OSError:  # it fails for another reason, so it was not closed
        return True
    return True


def enter(path: Path) -> None:
    for _ in path.iterdir():
        return


def read(path: Path) -> None:
    os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))


def write(path: Path) -> None:
    if path.is_dir():
        (path / "theirs").touch()
    else:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))


def connect(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(path))


def knock(port: int) -> None:
    """Connect, and wait a second for what is said."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as stranger:
        stranger.recv(1)


def swap(path: Path) -> None:
    path.rename(path.with_name("theirs"))


def test_every_socket_is_where_the_table_says(instance: Instance) -> None:
    """Both doors on the bind address; nothing else is there, and what else listens is on the loopback."""
    listening = list_listening(instance)
    assert len(listening) > 15, "Ray, HAProxy, gateways, replicas"
    doors = {port for _, ip, port in listening if ip == instance.host}
    assert doors == {instance.http_port, instance.ws_port}
    assert ("127.0.0.1", instance.ops_port) in {(ip, port) for _, ip, port in listening}
    assert {ip for _, ip, _ in listening} - {instance.host} <= LOOPBACK, listening


def test_no_socket_has_a_name_without_a_file(instance: Instance) -> None:
    names = set()
    for process in list_processes(instance):
        with suppress(psutil.NoSuchProcess):
            names |= {socket.laddr for socket in process.net_connections("unix") if socket.laddr}
    assert not {name for name in names if name.startswith(("@", "\0"))}
    assert names


def test_files_and_sockets_are_closed_to_another_user(instance: Instance) -> None:
    assert instance.scratch is not None
    for root in (instance.data_dir, instance.scratch):
        require_private(root.resolve(), "the directory")
        assert root.stat().st_mode & 0o777 == 0o700
        assert root.stat().st_uid == os.geteuid()
    if os.geteuid() != 0:  # the modes say it: only root can be somebody else
        return
    paths = list_files(instance)
    sockets = [path for path in paths if path.is_socket()]
    assert {path.name for path in sockets} >= {"plasma_store", "raylet", "admin", ".s.PGSQL.5432"}
    attempts = [(attempt, path) for path in paths for attempt in (enter, read, write, swap)]
    attempts += [(connect, path) for path in sockets]

    def look() -> list[str]:
        return [f"{attempt.__name__} {path}" for attempt, path in attempts if is_allowed(attempt, path)]

    assert as_stranger(look) == []


def test_processes_tell_another_user_no_secret(instance: Instance) -> None:
    processes = list_processes(instance)
    environments = []
    words = ""
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # PostgreSQL's come and go
            words += " ".join(process.cmdline())
            environments.append(process.environ())
    names = ("RAY_AUTH_TOKEN", "BROKER_INGRESS_KEY")
    secrets = {environment[name] for environment in environments for name in names if name in environment}
    assert len(secrets) == len(names), "one start, one secret of each kind"
    for secret in (*secrets, PASSWORD):
        assert secret not in words
    if os.geteuid() != 0:
        return
    attempts = [(read, "environ"), (read, "mem"), (enter, "fd"), (enter, "cwd"), (enter, "root")]
    wanted = [
        (attempt, Path(f"/proc/{process.pid}/{name}")) for process in processes for attempt, name in attempts
    ]

    def look() -> list[str]:
        return [str(path) for attempt, path in wanted if is_allowed(attempt, path)]

    assert as_stranger(look) == []


def test_processes_give_way_to_nobody(instance: Instance) -> None:
    given = psutil.Process(instance.process.pid).nice()
    later = set()
    for process in list_processes(instance):
        with suppress(psutil.NoSuchProcess):
            if process.nice() > given:
                later.add(process.name())
    assert later == set()


def test_ports_of_ray_take_no_call_without_the_certificate(instance: Instance) -> None:
    """Not even one that Ray answers without its secret; and none ends a process of Ray's."""
    before = list_ray(instance)
    ports = {port for _, ip, port in list_listening(instance) if ip == "::ffff:127.0.0.1"}
    assert len(ports) >= 10
    assert instance.scratch is not None
    # Even one who believes the servers must show a certificate.
    trusting = grpc.ssl_channel_credentials((instance.scratch / "tls" / "certificate.pem").read_bytes())
    for port in ports:
        target = f"127.0.0.1:{port}"
        for open_channel in (grpc.insecure_channel, lambda t: grpc.secure_channel(t, trusting)):
            with open_channel(target) as channel:
                for method in (REFLECTION, SYNCER):
                    with pytest.raises(grpc.RpcError) as refused:
                        list(channel.stream_stream(method)(iter([b""]), timeout=CALL_S))
                    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE, (port, method)
    # By their ids: a spare replica may have come, and an actor is named for what it does at the moment.
    gone = before.keys() - {process.pid for process in list_processes(instance)}
    assert not [before[pid] for pid in gone]
    assert httpx.get(f"{instance.url}/api/v1/version", timeout=20).status_code == 200


def test_connection_of_another_user_starts_no_helper_of_ray(instance: Instance) -> None:
    before = list_standbys(instance)
    assert len(before) == 2
    ports = sorted({port for _, ip, port in list_listening(instance) if ip == "127.0.0.1"})

    def look() -> list[str]:
        with ThreadPoolExecutor(len(ports)) as pool:
            list(pool.map(knock, ports))
        return []

    if os.geteuid() == 0:  # as ourselves we would start it
        assert as_stranger(look) == []
        assert list_standbys(instance) == before


def test_start_refuses_a_data_directory_that_others_can_swap(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    refused = Instance(tmp_path / "open" / "data").fail()
    assert f"{tmp_path / 'open'} can be written by others" in refused
