"""Every setting: its name in the environment, default, unit and meaning. The only reader of the environment.

`broker up --help`, `docs/settings.md` and the checks in the tests are made from `Settings`' fields.
"""

import math
import os
from collections.abc import Mapping, Set
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

from broker.setting_rules import NODE, PRINTABLE, RULES, is_printable, names_like, proxy_fault
from broker.settings_file import SettingsFileError, read_settings_file

_PREFIX = "BROKER_"
_FILE = "BROKER_SETTINGS_FILE"
# Variables with our prefix that are no settings. The command line's own, for client commands and `move`:
_CLIENT = frozenset({"BROKER_URL", "BROKER_TOKEN", "BROKER_USERNAME", "BROKER_PASSWORD", "BROKER_MOVE_TO"})
# The mark of our processes, and what the build and its tests read:
_OTHERS = _CLIENT | {"BROKER_INSTANCE", "BROKER_CONDUCTOR", "BROKER_BUILT_S", "BROKER_LEAK_ROUNDS"}
# The largest of what names no limit of its own. A day for times; for bytes more than a machine has; for the
# rest what every counter on the way holds, PostgreSQL's integers and native code's.
_MOST_S = 86_400
_MOST_BYTES = 1 << 40
_MOST = (1 << 31) - 1
_SHOWN_CHARACTERS = 80
_OPS_STEP = 50
_LAST_PORT = 65_535
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}


class SettingError(Exception):
    """A setting has a value that it cannot have; the text names it and what is allowed."""


def _setting(
    default: Any,
    text: str,
    *,
    low: float | None = None,
    high: float | None = None,
    secret: bool = False,
    at_start: bool = False,
) -> Any:
    told = {"text": text, "low": low, "high": high, "secret": secret, "at_start": at_start}
    return field(default=default, repr=not secret, metadata=told)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of the product. A field `ws_port` is `BROKER_WS_PORT` in the environment.

    What is `at_start` of `broker up` is fixed until the next start: it is of what a reload does not exchange,
    or all processes must agree on it at any time.
    """

    settings_file: str = _setting(
        "",
        "File with settings, as lines `NAME=VALUE`, which `broker reload` reads again; a variable of the"
        " environment wins over its line.",
        at_start=True,
    )
    http_port: int = _setting(8000, "Port of the HTTP API.", low=1, high=65535, at_start=True)
    ws_port: int = _setting(8001, "Port of the WebSocket gateways.", low=1, high=65535, at_start=True)
    bind_host: str = _setting(
        "127.0.0.1",
        "Address that the HTTP API and the gateways listen on; `node` is that of each node of a cluster.",
        at_start=True,
    )
    public_host: str = _setting(
        "localhost", "Host name that clients use; an account is a label in front of it.", at_start=True
    )
    public_ws_url: str = _setting(
        "",
        "URL of the WebSocket endpoint as clients reach it, with `{account}` and `{node}` for the"
        " labels of the account and of the gateway's node, such as `10-0-0-7`; empty derives it"
        " from host and port.",
    )
    data_dir: Path = _setting(Path(".broker"), "Directory of all data on this machine.", at_start=True)
    database_url: str = _setting(
        "",
        "PostgreSQL to use, version 14 or newer; empty starts an embedded one.",
        secret=True,
        at_start=True,
    )
    postgres_bin: str = _setting(
        "", "Directory of PostgreSQL's programs for the embedded server.", at_start=True
    )
    ray_address: str = _setting("", "Ray cluster to join; empty starts a local one.", at_start=True)
    default_account: str = _setting("demo", "Account for host names without an account label.", at_start=True)
    admin_password: str = _setting(
        "",
        "Password of `admin` at the first start; empty generates one and prints it.",
        secret=True,
        at_start=True,
    )
    token_lifetime_s: int = _setting(
        3600, "Lifetime of an access token.", low=10, high=31_536_000, at_start=True
    )
    client_ids: tuple[str, ...] = _setting(
        (
            "WebProducerDashboard",
            "Test",
            "VisionMixer",
            "DashboardScript",
            "GraphicsSystem",
            "MediaSequencer",
        ),
        "Accepted values of `client_id`.",
    )
    trusted_proxies: tuple[str, ...] = _setting(
        (),
        "Networks of proxies whose `X-Forwarded-For` is trusted; the broker's own ingress needs no entry.",
        at_start=True,
    )
    proxy_protocol: tuple[str, ...] = _setting(
        (),
        "Networks, within `BROKER_TRUSTED_PROXIES`, whose connections to the HTTP port and the gateways must"
        " begin with a PROXY header, version 1 or 2; one from elsewhere is refused.",
        at_start=True,
    )
    ingress_key: str = _setting(
        "",
        "Secret by which the ingress authenticates to replicas; empty generates one at each"
        " start, or derives it from Ray's token on a cluster.",
        secret=True,
        at_start=True,
    )
    http_tls_port: int = _setting(
        0,
        "Port of the HTTP API over TLS, beside the one without; 0 is none.",
        low=0,
        high=65535,
        at_start=True,
    )
    http_tls_certificate: str = _setting(
        "",
        "File with the certificate of that port and its chain, in PEM, on each node; as of the gateways"
        " below.",
        at_start=True,
    )
    http_tls_key: str = _setting(
        "", "File with the key of that certificate, in PEM, not encrypted.", at_start=True
    )
    http_connections: int = _setting(
        30_000,
        "Maximum connections of the HTTP port; fewer if the limit of open files is lower.",
        low=100,
        at_start=True,
    )
    http_connections_per_address: int = _setting(
        12_000,
        "Maximum connections to the HTTP port, and to the operators' port, from one IPv4 address or IPv6 /64"
        " network. An IPv4 /24 or IPv6 /48 network may have 38 % of all, fewer while others have some. 0 is"
        " no limit of either.",
        low=0,
        at_start=True,
    )
    http_long_bodies_per_address: int = _setting(
        256,
        "Maximum concurrent requests with a body over 15 kB from one such address; 0 is no limit.",
        low=0,
        at_start=True,
    )
    http_waiting_bytes: int = _setting(
        128 << 20,
        "Memory for request bodies of one API replica, over all connections; requests beyond it get 503."
        " Four times `BROKER_BODY_LIMIT_BYTES` where that is more, because one caller may have a third of"
        " it.",
        low=1 << 20,
    )
    ops_host: str = _setting(
        "127.0.0.1",
        "Address for operators, which serves `/metrics`, `/readyz` and Ray Serve's routes; `node` as above.",
        at_start=True,
    )
    ops_port: int = _setting(
        0,
        "Port of that address; 0 is the HTTP port plus 50, or minus 50 if the sum exceeds 65535.",
        low=0,
        high=65535,
        at_start=True,
    )
    log_level: str = _setting("info", "Log level: debug, info, warning or error.")
    log_limit_bytes: int = _setting(
        1 << 30,
        "Maximum size of all logs in the data directory; the oldest lines are deleted first.",
        low=1 << 20,
    )

    traces_url: str = _setting(
        "",
        "Where traces of publishes are sent, by OTLP over HTTP, such as `http://127.0.0.1:4318/v1/traces`;"
        " empty sends none.",
    )
    traces_sample: float = _setting(
        0.01,
        "Share of publishes over HTTP that are traced. A caller with a token may ask for a trace by the"
        " header `traceparent`.",
        low=0,
        high=1,
    )

    owners: int = _setting(
        1,
        "Number of program owners at the first start, one process each; one can order thousands of programs."
        " `broker scale` changes it while they run.",
        low=1,
        high=1024,
        at_start=True,
    )
    counters: int = _setting(
        1,
        "Number of counters of votes, one process each; a poll is spread over all of them.",
        low=1,
        high=1024,
        at_start=True,
    )
    api_replicas_min: int = _setting(
        1, "Minimum number of API replicas; a single one has a spare.", low=1, high=1000, at_start=True
    )
    http_timeout_s: float = _setting(
        120.0,
        "Maximum time of an HTTP request, from its first byte to the last byte of the response.",
        low=1,
        at_start=True,
    )
    api_replicas_max: int = _setting(8, "Maximum number of API replicas.", low=1, high=1000)
    gateway_loops: int = _setting(0, "Native event loops of a gateway; 0 is one per core.", low=0, high=64)
    relay_from: int = _setting(
        64,
        "Number of gateways from which on some of them feed the others, so that an owner feeds as many as the"
        " square root; 0 is never.",
        low=0,
        high=1_000_000,
    )
    gateway_send: str = _setting("auto", "How a gateway writes to sockets: auto, io_uring or send.")
    drain_s: float = _setting(
        5.0,
        "Time over which a gateway that shuts down spreads the reconnects of its clients.",
        low=0,
        high=600,
    )

    history_events: int = _setting(10_000, "Pushes per program that recovery covers.", low=1, high=1_000_000)
    history_hours: float = _setting(24.0, "Hours of pushes that recovery covers.", low=0.001, high=8_760)
    history_bytes: int = _setting(
        64 << 20,
        "Bytes of pushes per program that a gateway keeps for recovery.",
        low=1 << 20,
        high=1 << 40,
    )
    body_limit_bytes: int = _setting(1 << 20, "Largest request body.", low=1024)
    import_limit_bytes: int = _setting(64 << 20, "Largest body of an import.", low=1024)
    batch_limit_events: int = _setting(1_000, "Events in one batch.", low=1, high=100_000)
    batch_limit_responses: int = _setting(1_000, "Votes and impressions in one batch.", low=1, high=100_000)
    import_limit_events: int = _setting(100_000, "Events in one import.", low=1, high=10_000_000)
    metadata_limit_bytes: int = _setting(64 << 10, "Largest metadata of one event, as compact UTF-8.", low=2)
    storage_value_limit_bytes: int = _setting(256 << 10, "Largest stored value, as compact UTF-8.", low=2)
    storage_project_values: int = _setting(10_000, "Maximum stored values of one project.", low=1)
    storage_project_bytes: int = _setting(
        64 << 20, "Maximum total size of the stored values of one project.", low=1024
    )
    storage_rate_per_address: float = _setting(
        10.0, "Values per second that one address may store without a token; 0 is no limit.", low=0
    )
    storage_burst_per_address: int = _setting(100, "Burst of such values from one address.", low=1)
    storage_rate_per_account: float = _setting(
        500.0, "Values per second that may be stored without a token in one account; 0 is no limit.", low=0
    )
    storage_burst_per_account: int = _setting(5_000, "Burst of such values in one account.", low=1)

    lists_per_address: int = _setting(
        8,
        "Maximum lists and exports of over 200 events that one address reads concurrently in one process.",
        low=1,
    )
    lists_per_account: int = _setting(
        64,
        "Maximum such lists read concurrently per account and process: this many with a token,"
        " and as many without.",
        low=1,
    )
    lists_rate_per_address: float = _setting(
        5.0, "Such lists per second that one address may begin in one process; 0 is no limit.", low=0
    )
    lists_burst_per_address: int = _setting(100, "Burst of such lists from one address.", low=1)
    lists_rate_per_account: float = _setting(
        50.0, "Such lists per second per account and process, counted as above; 0 is no limit.", low=0
    )
    lists_burst_per_account: int = _setting(500, "Burst of such lists in one account.", low=1)

    program_polls: int = _setting(
        10_000, "Maximum polls of a program with free contexts whose contexts are not events.", low=1
    )
    responses_rate_per_address: float = _setting(
        200.0, "Votes and impressions per second from one address in one process; 0 is no limit.", low=0
    )
    responses_burst_per_address: int = _setting(
        2_000, "Burst of votes and impressions from one address.", low=1
    )
    responses_names_rate_per_address: float = _setting(
        1.0, "Undeclared measure names per second that one address may introduce; 0 is no limit.", low=0
    )
    responses_names_burst_per_address: int = _setting(200, "Burst of such names from one address.", low=1)
    responses_rate_per_connection: float = _setting(
        10.0, "Votes and impressions per second over one WebSocket connection; 0 is no limit.", low=0
    )
    responses_burst_per_connection: int = _setting(
        50, "Burst of votes and impressions over one connection.", low=1
    )
    visitors_rate_per_address: float = _setting(
        20.0, "New visitors per second that one address is handed, over all processes; 0 is no limit.", low=0
    )
    visitors_burst_per_address: int = _setting(2_000, "Burst of new visitors of one address.", low=1)
    visitors_rate_per_network: float = _setting(
        50.0, "New visitors per second that one network is handed, over all processes; 0 is no limit.", low=0
    )
    visitors_burst_per_network: int = _setting(5_000, "Burst of new visitors of one network.", low=1)
    visitors_ipv4_prefix: int = _setting(24, "Bits of an IPv4 address that name its network.", low=8, high=32)
    visitors_ipv6_prefix: int = _setting(
        64, "Bits of an IPv6 address that name its network.", low=16, high=128
    )

    ws_message_limit_bytes: int = _setting(
        1 << 20,
        "Largest message from a WebSocket client; a larger one closes the connection with 1009.",
        low=1024,
    )
    ws_ping_s: float = _setting(25.0, "Interval of a gateway's pings.", low=0.1)
    ws_pong_s: float = _setting(10.0, "Time within which a client must answer a ping.", low=0.1)
    ws_alive_s: float = _setting(
        1.0,
        "Interval of the notification `alive`, for clients that ask for it and get nothing else meanwhile;"
        " 0: none.",
        low=0,
    )
    ws_handshake_s: float = _setting(10.0, "Maximum time of a WebSocket handshake.", low=0.1)
    ws_tls_certificate: str = _setting(
        "",
        "File with the certificate of the gateways and its chain, in PEM, on each node; with it they speak"
        " TLS only. It is read again when it changes.",
        at_start=True,
    )
    ws_tls_key: str = _setting(
        "", "File with the key of that certificate, in PEM, not encrypted.", at_start=True
    )
    ws_lag_bytes: int = _setting(
        1 << 20,
        "Unsent bytes at which a slow consumer that has read nothing for a second is closed.",
        low=1024,
    )
    ws_lag_s: float = _setting(
        15.0, "Time for which a slow consumer may be behind before it is closed.", low=0.1
    )
    ws_connections: int = _setting(
        1_000_000,
        "Maximum connections of one gateway; lower if the limit of open files is lower.",
        low=1,
    )
    ws_connections_per_address: int = _setting(
        20_000,
        "Maximum connections from one IPv4 address or IPv6 /64 network to one gateway. An IPv4 /24 or IPv6"
        " /48 network may have 38 % of all, fewer while others have some. 0 is no limit of either.",
        low=0,
    )
    ws_unlimited_addresses: tuple[str, ...] = _setting(
        (),
        "Networks exempt from these limits, such as load balancers and venues with many viewers"
        " behind one address.",
    )
    ws_waiting_bytes: int = _setting(
        256 << 20,
        "Memory for data that waits for clients of a gateway, over all connections: unfinished"
        " messages, calls, unread replies.",
        low=1 << 20,
    )
    ws_subscriptions: int = _setting(100, "Maximum subscriptions of one connection.", low=1, high=1_000_000)
    ws_messages_per_s: float = _setting(
        100.0, "Requests per second of one connection; every 64 KiB count as one more. 0 is no limit.", low=0
    )
    ws_messages_burst: int = _setting(1_000, "Burst of requests of one connection.", low=1)

    statistics: bool = _setting(True, "Whether statistics are recorded and can be read.")
    statistics_minute_days: int = _setting(
        7, "Days for which statistics by the minute are kept.", low=1, high=366
    )
    statistics_hour_days: int = _setting(
        92, "Days for which statistics by the hour are kept.", low=2, high=3_660
    )
    statistics_day_days: int = _setting(
        1_100, "Days for which statistics by the day are kept.", low=2, high=36_600
    )
    audit_days: int = _setting(
        400, "Days for which the audit log is kept; 0 keeps it for ever.", low=0, high=36_600
    )

    database_pool: int = _setting(8, "Maximum connections of one process to PostgreSQL.", low=1, high=1000)
    database_timeout_s: float = _setting(
        10.0, "Maximum time of a statement, and of the wait for a connection.", low=0.1
    )
    publish_timeout_s: float = _setting(
        10.0, "Time for which the broker itself retries a publish before it returns 503.", low=0.1
    )
    login_tries_per_user: int = _setting(10, "Failed log-ins per minute for one user name.", low=1)
    login_tries_per_address: int = _setting(
        30,
        "Failed log-ins per minute from one address; also, in each process, unknown API tokens"
        " sent as bearer tokens.",
        low=1,
    )
    login_rate_per_address: float = _setting(
        200.0, "Log-ins per second from one address, successful or not; 0 is no limit.", low=0
    )
    login_burst_per_address: int = _setting(2_000, "Burst of log-ins from one address.", low=1)
    login_rate_per_account: float = _setting(
        1_000.0, "Log-ins per second in one account, successful or not; 0 is no limit.", low=0
    )
    login_burst_per_account: int = _setting(10_000, "Burst of log-ins in one account.", low=1)

    fetch_allow_hosts: tuple[str, ...] = _setting(
        (),
        "Hosts, as `host[:port]`, of data sources whose addresses need not be public; without a"
        " port, all ports of the host.",
    )
    fetch_timeout_s: float = _setting(
        10.0, "Time-out of a data-source request, unless the data source sets its own.", low=0.1, high=60
    )
    fetch_limit_bytes: int = _setting(10 << 20, "Largest response of a data source.", low=1024)
    fetch_project_requests: int = _setting(
        20, "Maximum concurrent data-source requests of one project in one process.", low=1, high=1000
    )
    fetch_cache_bytes: int = _setting(64 << 20, "Cache of data-source responses in one process.", low=0)
    fetch_rate_per_address: float = _setting(
        20.0, "Data-source requests per second from one address; 0 is no limit.", low=0
    )
    fetch_burst_per_address: int = _setting(200, "Burst of such requests from one address.", low=1)
    fetch_rate_per_account: float = _setting(
        200.0, "Data-source requests per second in one account; 0 is no limit.", low=0
    )
    fetch_burst_per_account: int = _setting(2_000, "Burst of such requests in one account.", low=1)

    images_allow_hosts: tuple[str, ...] = _setting(
        (),
        "Hosts, as `host[:port]`, of image sources whose addresses need not be public. Separate"
        " from the list of data sources, because anyone may request images.",
    )
    images_ports: tuple[str, ...] = _setting(("80", "443"), "Allowed ports of image sources.")
    images_timeout_s: float = _setting(
        30.0,
        "Time-out of an image request, including the start of the first replica.",
        low=1,
        high=600,
        at_start=True,
    )
    images_fetch_timeout_s: float = _setting(
        10.0, "Time-out of fetching a source, over all redirects.", low=0.1, high=60
    )
    images_source_limit_bytes: int = _setting(20 << 20, "Largest source image.", low=1024)
    images_sources_bytes: int = _setting(
        256 << 20,
        "Memory for source images of one replica; requests beyond it get 503.",
        low=1 << 20,
    )
    images_rate_per_address: float = _setting(
        50.0, "Images per second that a replica produces for one address; 0 is no limit.", low=0
    )
    images_burst_per_address: int = _setting(1_000, "Burst of such images for one address.", low=1)
    images_rate_per_account: float = _setting(
        200.0, "Images per second that a replica produces for one account; 0 is no limit.", low=0
    )
    images_burst_per_account: int = _setting(4_000, "Burst of such images for one account.", low=1)
    images_processes: int = _setting(
        3, "Decoder processes of one replica, started on demand.", low=1, high=256
    )
    images_process_bytes: int = _setting(
        1 << 30,
        "Maximum private memory of a decoder process; an image that needs more is refused.",
        low=256 << 20,
    )
    images_shrink: str = _setting(
        "fine",
        "How JPEGs are shrunk: fine, or fast, which takes a fifth less CPU time where a side becomes a"
        " half, a quarter, an eighth or a little less, and loses detail there.",
    )
    images_cache_bytes: int = _setting(64 << 20, "Cache of results in the memory of one replica.", low=0)
    images_disk_bytes: int = _setting(
        2 << 30, "Cache of sources and results in the data directory of a node; 0 keeps none there.", low=0
    )
    images_replicas_min: int = _setting(
        0,
        "Minimum number of image replicas; with 0 the first request starts one. On a joined"
        " cluster at least one runs.",
        low=0,
        high=1000,
    )
    images_replicas_max: int = _setting(4, "Maximum number of image replicas.", low=1, high=1000)
    images_idle_s: float = _setting(
        300.0, "Time after which an unused image replica ends; each end reloads the ingress.", low=300
    )

    images_warm_fields: tuple[str, ...] = _setting(
        (),
        "Fields of an event's metadata, such as `player.photo`, whose images are produced when"
        " the event is published; lists on the path are searched.",
    )
    images_warm_options: str = _setting(
        "", "Options of those images, separated by spaces, such as `preset=card w=200,f=webp`."
    )

    faces_models: str = _setting(
        "", "Directory of models in insightface's format; empty uses the models of the build."
    )
    faces_detector: str = _setting(
        "ssd", "Detector of the build: ssd, or tiny, which is faster and misses more faces."
    )
    faces_min_score: float = _setting(0.5, "Minimum score of a detected face.", low=0.01, high=1)
    faces_timeout_s: float = _setting(
        10.0, "Time-out of face detection; afterwards the image is cropped by attention.", low=0.1, high=60
    )
    faces_replicas_max: int = _setting(
        4,
        "Maximum number of face-detection replicas; none run while they are not needed.",
        low=1,
        high=1000,
    )
    faces_gpu_share: float = _setting(
        0.25, "Share of a GPU that each of them reserves if the cluster has one.", low=0.01, high=1
    )

    identity_allow_hosts: tuple[str, ...] = _setting(
        (),
        "Hosts, as `host[:port]`, inside the network from which keys of identity providers may be fetched.",
    )

    matomo_url: str = _setting(
        "",
        "Matomo 5 of the default account, such as `https://matomo.example.com`; empty disables analytics.",
    )
    matomo_token: str = _setting("", "Token of a Matomo superuser, which sets up sites.", secret=True)
    matomo_reader: str = _setting("", "Name of a read-only Matomo user, which reads reports.")
    matomo_reader_token: str = _setting("", "Token of that user.", secret=True)
    matomo_setup: str = _setting(
        "", "YAML file with the dimensions and reports of sites; empty uses the one that is shipped."
    )
    matomo_timeout_s: float = _setting(30.0, "Time-out of one request to Matomo.", low=0.1, high=600)
    report_limit_bytes: int = _setting(50 << 20, "Largest report.", low=1024)
    report_cache_bytes: int = _setting(64 << 20, "Cache of reports in one process.", low=0)

    @property
    def operations_port(self) -> int:
        """The port for operators."""
        beside = self.http_port + (_OPS_STEP if self.http_port + _OPS_STEP <= _LAST_PORT else -_OPS_STEP)
        return self.ops_port or beside

    @classmethod
    def load(
        cls, environ: Mapping[str, str] | None = None, *, refuses_unknown: bool = True, **overrides: Any
    ) -> "Settings":
        """Read the environment and the settings file that it names; `overrides` that are not None win.

        Args:
            refuses_unknown: false where another version of us has written the environment.

        Raises:
            SettingError: a value that its setting cannot have, a variable of ours that is no setting, or a
                settings file that cannot be read.
        """
        environ = os.environ if environ is None else environ
        if refuses_unknown:
            _refuse_unknown(environ, _OTHERS)
        environ = {**_read_file(environ), **{name: text for name, text in environ.items() if text}}
        kinds = get_type_hints(cls)
        values: dict[str, Any] = {}
        written: dict[str, str] = {}
        for entry in fields(cls):
            text = environ.get(environment_name(entry.name))
            if text:
                values[entry.name] = _parse(entry, kinds[entry.name], text)
                written[entry.name] = text
            if overrides.get(entry.name) is not None:
                values[entry.name] = overrides[entry.name]
                written.pop(entry.name, None)
        settings = cls(**values)
        settings._check(written)
        return settings

    def to_environment(self) -> dict[str, str]:
        """The environment from which `load` makes these same settings, but for those that are `broker up`'s.

        For processes that we start: the password is needed once, at the first start, and what is in the file
        has been read.
        """
        return {
            environment_name(entry.name): _format(getattr(self, entry.name))
            for entry in fields(self)
            if entry.name not in ("admin_password", "settings_file")
        }

    def __reduce__(self) -> tuple[Any, ...]:
        """Settings travel to other processes by name, so that those may run a newer version."""
        return _restore, ({entry.name: getattr(self, entry.name) for entry in fields(self)},)

    def _check(self, written: Mapping[str, str]) -> None:
        """Raise SettingError. Args: written: by field, the texts that values were read from."""
        for entry in fields(self):
            value = getattr(self, entry.name)
            allowed = _fault_of(entry, value)
            if allowed is not None:
                raise _refusal(entry, written.get(entry.name) or _format(value), allowed)
        if self.api_replicas_min > self.api_replicas_max:
            raise SettingError("BROKER_API_REPLICAS_MIN: must be at most BROKER_API_REPLICAS_MAX")
        if NODE in (self.bind_host, self.ops_host) and not self.ray_address:
            name = "BROKER_BIND_HOST" if self.bind_host == NODE else "BROKER_OPS_HOST"
            raise SettingError(f"{name}: must be an address where BROKER_RAY_ADDRESS names no cluster")
        if self.http_tls_port and not (self.http_tls_certificate and self.http_tls_key):
            raise SettingError(
                "BROKER_HTTP_TLS_PORT: needs BROKER_HTTP_TLS_CERTIFICATE and BROKER_HTTP_TLS_KEY"
            )
        if self.http_tls_port in (self.http_port, self.ws_port, self.operations_port):
            raise SettingError("BROKER_HTTP_TLS_PORT: must differ from the other ports")
        if bool(self.ws_tls_certificate) != bool(self.ws_tls_key):
            missing = "BROKER_WS_TLS_KEY" if self.ws_tls_certificate else "BROKER_WS_TLS_CERTIFICATE"
            raise SettingError(f"{missing}: is needed beside the other one of the two")
        if fault := proxy_fault(self.proxy_protocol, self.trusted_proxies, self.bind_host):
            raise SettingError(f"BROKER_PROXY_PROTOCOL: {fault}")
        if self.http_port == self.ws_port:
            raise SettingError("BROKER_WS_PORT: must differ from BROKER_HTTP_PORT")
        if self.operations_port in (self.http_port, self.ws_port):
            raise SettingError("BROKER_OPS_PORT: must differ from BROKER_HTTP_PORT and BROKER_WS_PORT")


def _restore(values: Mapping[str, Any]) -> Settings:
    """Settings as they were sent; those that this version does not know are left out."""
    known = {entry.name for entry in fields(Settings)}
    return Settings(**{name: value for name, value in values.items() if name in known})


def settings_table() -> str:
    """All settings as a table in Markdown, in the order of their fields; `docs/settings.md` holds it."""
    lines = ["| variable | default | change by | meaning |", "|---|---|---|---|"]
    for entry in fields(Settings):
        default = _format(entry.default)
        shown = f"`{default}`" if default else "empty"
        change = "start" if entry.metadata["at_start"] else "reload"
        lines.append(f"| `{environment_name(entry.name)}` | {shown} | {change} | {entry.metadata['text']} |")
    return "\n".join(lines) + "\n"


def environment_name(name: str) -> str:
    """The environment variable of the field `name`."""
    return f"BROKER_{name.upper()}"


def child_environment(changes: Mapping[str, str]) -> dict[str, str]:
    """The environment for a process that we start: our own with `changes`, without our settings.

    Settings reach children by `Settings.to_environment`, so that options of the command line count too.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BROKER_")}
    return kept | dict(changes)


def shadowed_names(environ: Mapping[str, str] | None = None) -> list[str]:
    """The variables whose lines in the settings file say nothing, as the environment has another value.

    Raises:
        SettingError: the file cannot be read.
    """
    environ = os.environ if environ is None else environ
    written = _read_file(environ)
    return [name for name, text in written.items() if environ.get(name, "") not in ("", text)]


def _read_file(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of the settings file; none where there is no such file. Raises SettingError."""
    place = environ.get(_FILE, "")
    if not place:
        return {}
    try:
        found = read_settings_file(Path(place))
    except SettingsFileError as error:
        raise SettingError(f"{_FILE}={_shown(place)}: {error}") from error
    for name in found:
        if name == _FILE or not name.startswith(_PREFIX):
            raise SettingError(f"{_FILE}={_shown(place)}: must have settings only, and has {name}")
    _refuse_unknown(found, frozenset())
    return found


def _refuse_unknown(environ: Mapping[str, str], others: Set[str]) -> None:
    """Raise SettingError for the first variable with our prefix that is no setting and none of `others`."""
    known = {environment_name(entry.name) for entry in fields(Settings)}
    for name in sorted(environ):
        if name.upper().startswith(_PREFIX) and name not in known | others:
            raise SettingError(f"{name}: there is no such setting; {_hint(name.upper())}")


def _hint(name: str) -> str:
    """What may help whoever has written a name that is no setting."""
    names = [environment_name(entry.name) for entry in fields(Settings)] + sorted(_CLIENT)
    *others, last = names_like(
        name.removeprefix(_PREFIX), [each.removeprefix(_PREFIX) for each in names]
    ) or [""]
    if not last:
        return "docs/settings.md has them all"
    told = [_PREFIX + each for each in others]
    return f"did you mean {', '.join(told)}{' or ' * bool(told)}{_PREFIX}{last}?"


def _refusal(entry: Field[Any], text: str, allowed: str) -> SettingError:
    """The error of one setting: its name, its value unless that is secret, and what is allowed."""
    shown = "" if entry.metadata["secret"] else f"={_shown(text)}"
    return SettingError(f"{environment_name(entry.name)}{shown}: must be {allowed}")


def _shown(text: str) -> str:
    cut = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
    return cut if cut.isprintable() else ascii(cut)


def _fault_of(entry: Field[Any], value: object) -> str | None:
    """What is allowed where `value` is not; None for a value that may be."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        low, high = entry.metadata["low"], _high(entry)
        is_allowed = math.isfinite(value) and value <= high and (low is None or value >= low)
        return None if is_allowed else _range(entry)
    rule = RULES.get(entry.name)
    texts = value if isinstance(value, tuple) else (str(value),)
    if not all(map(is_printable, texts)):
        return PRINTABLE
    if rule is None or value == entry.default:
        return None
    is_allowed = all(map(rule.is_allowed, texts)) and (bool(texts) or rule.may_be_empty)
    return None if is_allowed else rule.told_of(",".join(texts))


def _range(entry: Field[Any]) -> str:
    """The numbers that are allowed."""
    low, high = entry.metadata["low"], _high(entry)
    return f"{low} to {high}" if low is not None else f"at most {high}"


def _high(entry: Field[Any]) -> float:
    """The largest value of a number."""
    high: float | None = entry.metadata["high"]
    if high is not None:
        return high
    if entry.name.endswith("_bytes"):
        return _MOST_BYTES
    return _MOST_S if entry.name.endswith("_s") and not entry.name.endswith("_per_s") else _MOST


def _format(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def _parse(entry: Field[Any], kind: Any, text: str) -> Any:
    try:
        if kind is bool:
            return _parse_bool(text)
        if kind is int or kind is float:
            return kind(text)
        if kind is Path:
            return Path(text)
        if kind == tuple[str, ...]:
            return tuple(part.strip() for part in text.split(",") if part.strip())
        return text
    except ValueError:
        kinds = {int: "a whole number", float: "a number"}
        allowed = "on or off" if kind is bool else f"{kinds[kind]}, {_range(entry)}"
        raise _refusal(entry, text, allowed) from None


def _parse_bool(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ValueError(text)
