"""The environment of processes on Ray. Built without importing Ray, which reads it at import."""

import hashlib
import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path

from broker.deployments import ingress_key
from broker.deployments.ports import internal_port, replica_ports
from broker.deployments.ray_internals import haproxy
from broker.deployments.ray_internals.ray_logs import FILE_BYTES
from broker.deployments.ray_tls import make_certificate
from broker.settings import SettingError, Settings, environment_name

RAY_HOST = "127.0.0.1"
"""The address of the only node of a Ray of our own."""
SETUP_HOOK = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"
"""The variable in which Ray's workers find what to call first."""
_SERVE_DRAIN_S = 1
# Serve ends the ingress of a node that has been without a replica for as long. A replica that died is
# replaced well before, and until then the ingress answers in our words.
_INGRESS_KEPT_S = 60
_PROXY_PORT = "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT"
_USUAL_PROXY_PORT = "8500"  # Ray Serve's own
_PLACES = ("_CONFIG_FILE_LOC", "_SOCKET_PATH", "_STATE_BASE", "_STATE_FILE")
_INGRESS_PROGRAM = "broker-ingress"
# What the ingress of a cluster must know; it is started by processes that have not our environment.
_INGRESS_SETTINGS = (
    "ray_address",
    "http_port",
    "bind_host",
    "trusted_proxies",
    "proxy_protocol",
    "http_timeout_s",
    "images_timeout_s",
    "http_connections",
    "http_connections_per_address",
    "http_long_bodies_per_address",
    "ops_host",
    "ops_port",
)
_NO_PROXY_PROTOCOL = "must be empty where HAProxy cannot run: Ray Serve's own proxy reads no such header"
_NO_HAPROXY = "HAProxy cannot run here; HTTP goes through Ray Serve's own proxy, at about a tenth of the rate"


def build_environment(settings: Settings, scratch: Path) -> tuple[dict[str, str], str]:
    """The variables for a conductor, and a warning for the operator or nothing.

    Args:
        scratch: the instance's directory for sockets; it exists.

    Raises:
        SettingError: a setting cannot be here.
    """
    if settings.ray_address:
        environment = {"RAY_TMPDIR": str(scratch), **serve_environment(), **_joined_ingress(settings)}
        return environment, ""
    program = haproxy.find_haproxy()
    environment = _local_environment(settings, scratch) | make_certificate(scratch / "tls", RAY_HOST)
    if program is None:
        if settings.proxy_protocol:
            raise SettingError(f"{environment_name('proxy_protocol')}: {_NO_PROXY_PROTOCOL}")
        return environment, _NO_HAPROXY
    key = settings.ingress_key or secrets.token_urlsafe(32)
    return environment | haproxy.install_start_script(scratch / "ha") | {ingress_key.NAME: key}, ""


def joined_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """What Ray Serve on a joined cluster must find, from the environment of a conductor.

    No secrets: Ray shows it to every user of a node (`ingress_key`).
    """
    environ = os.environ if environ is None else environ
    names = [
        *serve_environment(),
        *haproxy.ingress_environment(Path(), Path()),
        *map(environment_name, _INGRESS_SETTINGS),
    ]
    return {name: environ[name] for name in names if name in environ}


def _joined_ingress(settings: Settings) -> dict[str, str]:
    """The ingress of a cluster: started by our program, which all nodes have where this one has it.

    Raises:
        SettingError: there is nothing of which all nodes can make the same key, or a port is Ray Serve's.
    """
    _refuse_proxy_port(settings)
    key = settings.ingress_key or ingress_key.key_of_cluster()
    if not key:
        raise SettingError(f"{ingress_key.NAME}: is needed on a Ray cluster that has no RAY_AUTH_TOKEN")
    program = Path(sys.executable).with_name(_INGRESS_PROGRAM)
    ours = haproxy.ingress_environment(program, Path())
    # Ray writes them with its user's rights before our program can look at the place, so none is made up:
    # in a directory such as /tmp a neighbour could make it first.
    for name in ours:
        if name.endswith(_PLACES) and not Path(os.environ.get(name, "")).is_absolute():
            raise SettingError(
                f"{name}: must name a place on each node for Ray's user alone; see deploy/node.env"
            )
    return ours | {name: os.environ[name] for name in ours if name in os.environ} | {ingress_key.NAME: key}


def _refuse_proxy_port(settings: Settings) -> None:
    """Raise SettingError for the port of Serve's proxy on the head.

    Both would listen there without an error (SO_REUSEPORT), and the proxy would answer half of the requests.
    """
    proxy = os.environ.get(_PROXY_PORT, _USUAL_PROXY_PORT)
    ports = {
        "http_port": settings.http_port,
        "ws_port": settings.ws_port,
        "ops_port": settings.operations_port,
    }
    for name, port in ports.items():
        if str(port) == proxy:
            raise SettingError(
                f"{environment_name(name)}: must not be {port}, the port of Ray Serve's fallback proxy"
                f" ({_PROXY_PORT})"
            )


def serve_environment() -> dict[str, str]:
    """What Ray Serve must find in every process, on joined clusters too."""
    return {
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        # Replicas would take pickles from whoever connects (`replica_listeners`).
        "RAY_SERVE_USE_GRPC_BY_DEFAULT": "0",
        "RAY_SERVE_PROXY_USE_GRPC": "0",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": str(_SERVE_DRAIN_S),
        "RAY_SERVE_PROXY_MIN_DRAINING_PERIOD_S": str(_INGRESS_KEPT_S),
        # An ingress that died is noticed within these, not after half a minute.
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "2",
        "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "2",
        # Serve's proxy tells that a request waits for a first replica; the first time with old figures, where
        # Serve is not changed (`serve_pace`).
        "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "2",
        # What it counts for Ray's metrics, which are off, it would sum up ten times a second.
        "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "10000",
        # Ten rounds a second are half of what the controller of an idle product takes.
        "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
    }


def memory_environment() -> dict[str, str]:
    """What lets the kernel choose who ends when memory is short, on clusters of others too.

    Ray would end its newest workers, and so owners and gateways, from 95 % of the memory on, and would tell
    the kernel to end workers before anything else. Decoders of images say of themselves that they come first.
    """
    return {"RAY_memory_monitor_refresh_ms": "0", "RAY_worker_oom_score_adjustment": "0"}


def _local_environment(settings: Settings, scratch: Path) -> dict[str, str]:
    """What a Ray of our own must find before it is imported."""
    seed = int(hashlib.sha256(os.fsencode(scratch)).hexdigest()[:8], 16)
    first, last = replica_ports(seed)
    public = (settings.http_port, settings.ws_port, settings.operations_port)
    return {
        "RAY_TMPDIR": str(scratch),
        "RAY_ADDRESS": "",
        # Listen on the loopback interface alone (`ray_cluster`).
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        # Serve's own proxy believes nobody's `X-Forwarded-For`; the API looks itself.
        "FORWARDED_ALLOW_IPS": "",
        SETUP_HOOK: "broker.deployments.worker_setup.relax",
        # Every worker is an actor of ours; one that waits for work costs 50 MB for nothing.
        "RAY_enable_worker_prestart": "0",
        "RAY_prestart_worker_first_driver": "0",
        # The one that does wait (`RayWorkers.keep_spare`) is kept, whatever else runs.
        "RAY_num_workers_soft_limit": "1000",
        # Ray's own is 15: beside one busy process at 0 viewers would get a thirtieth of a core.
        "RAY_worker_niceness": "0",
        "RAY_enable_metrics_collection": "0",
        # What stands in for the node's agents hears from a pipe that the raylet has died, without looking.
        "RAY_enable_pipe_based_agent_to_parent_health_check": "1",
        "RAY_ROTATION_MAX_BYTES": str(FILE_BYTES),
        "RAY_ROTATION_BACKUP_COUNT": "1",
        # What runs on Ray goes on without its GCS until another Ray has taken over; Ray's own is a minute.
        "RAY_gcs_rpc_server_reconnect_timeout_s": "600",
        # Nobody reads what each process would tell every second about the calls that it has made,
        "RAY_task_events_report_interval_ms": "0",
        # how long each handler took, which costs a twentieth of what an idle worker takes,
        "RAY_event_stats": "0",
        # what an autoscaler would like to know, and ten times a second how much of the node is free.
        "RAY_gcs_pull_resource_loads_period_milliseconds": "10000",
        "RAY_raylet_report_resources_period_milliseconds": "1000",
        "RAY_raylet_check_gc_period_milliseconds": "1000",
        "RAY_kill_idle_workers_interval_ms": "2000",
        # Nothing large goes through the object store: it need not look ten times a second whether its disk is
        # full, and as often for transfers that hang.
        "RAY_local_fs_monitor_interval_ms": "10000",
        "RAY_object_manager_timer_freq_ms": "1000",
        **memory_environment(),
        **serve_environment(),
        "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "10",
        # At rest; it goes round faster by itself while something changes (`serve_pace`).
        "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "2",
        # Two of an instance's may listen at a time, while another Ray takes over.
        "SERVE_SOCKET_REUSE_PORT_ENABLED": "1",
        _PROXY_PORT: str(internal_port(public)),
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(first),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(last),
    }
