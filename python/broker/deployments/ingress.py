"""HAProxy's configuration: two frontends of our own in front of Ray Serve's applications.

The public one listens where clients come. It gives each request an id, bounds how long a head and a body may
take, how many connections and long bodies one address may have and how many connections one network, and
writes the address of the caller into a header that replicas believe by a secret (`broker.rest.callers`). The
other one is for operators: it alone leads to `/metrics`, `/readyz` and the routes.

Every reply is ours. What HAProxy says by itself has the product's error body. A reply from behind without our
`X-Content-Type-Options` is Ray Serve's, or its server's, and is exchanged. While no replica can take a
request, which is so while the product starts or stops, the reply is 503 `unavailable`. Once a request may
have reached a replica, a change is answered 503 `outcome_unknown`.

HAProxy has one gap: a head that is no HTTP, or does not come in time, is refused below the layer where bodies
can be chosen (h1_send_error in its mux_h1.c). There it sends a page of HTML or nothing; ours sends nothing
and closes. So the frontends have empty error files, which mean that, and the bodies stand in the backends.

HAProxy also closes its client's connection without a word when a request went over a kept connection to a
replica and the replica is gone (abort_keep_alive in its http_ana.c, and SF_SRV_REUSED there). It answers
where repeating the request was allowed and has failed, even when it was allowed no times. So each of our
applications has these backends:

- the one that Ray names, where kept connections are used and nothing is repeated, not even where a replica
  refuses a connection: the refusal that follows a repetition would end in silence again. So replicas that
  leave listen until no ingress names them (`departures`), and one that refuses is left out at once;
- `alone-…`, where each request has a connection of its own, which is never silent, and what no replica has
  seen is given to another one. It is for bodies that do not fit into HAProxy's buffer, which can never be
  repeated, and for all that an old process of HAProxy has left to do, since its list of replicas is not kept;
- `near-…`, for `/metrics`: the replicas of this node only;
- `connect-…`, for `GET /connect` as nearly everybody asks it: the gateway of this node, which answers at a
  socket file (`connect_door`). Other forms of it go to the API, and all of them while the gateway does not
  answer. Such a request changes nothing, so it is repeated whatever happens: a gateway that does not answer
  within a second is out until it answers a look, and a replica gets the request.

A node that loses its power ends no connection and refuses none. So a replica of another node is looked at
twice a second, and is out when two connections in a row are not accepted in time; a busy one, which accepts
and is slow to answer, is not. The kernel ends a connection whose other end has acknowledged nothing for two
seconds (TCP_USER_TIMEOUT, tcp(7)), and asks an end that owes an answer every second (SO_KEEPALIVE). Whoever
waited for it gets 503 `outcome_unknown`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from broker.deployments.ray_internals.haproxy_input import Application, IngressFault, RayInput
from broker.errors import (
    BrokerError,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    OutcomeUnknown,
    PayloadTooLarge,
    SlowDown,
    Unavailable,
)
from broker.rest.callers import HEADER, OPERATIONS, PUBLIC
from broker.rest.headers import EVERY_REPLY, NO_SNIFF
from broker.settings import Settings

APPLICATION = "broker"
"""The name of the API's application of Ray Serve; ours begin with it."""

IMAGES = "broker-images"
"""That of the image proxy."""

KINDS = ("http", "alone", "near")
"""Begin the names of an application's backends; the first one is Ray's."""


CONNECT = "/api/v1/connect"
"""The path at which clients ask for a gateway."""

RESERVED_IDS = (".", "..", "filter")  # `domain.values` has them, and what takes long to import
_CONNECTS = f"connect-{APPLICATION}"
_GATEWAY = "gateway"
_GATEWAY_LOOK = "check inter 1s fastinter 250ms rise 1 fall 1 observe layer7 error-limit 1 on-error mark-down"
_CONNECT_S = 1  # for the gateway's answer, which takes 10 us, and for a replica's
_CONNECTIONS = 500  # at a time, of each of two processes; the gateway has 1,024
# With `http-reuse never` alone, HAProxy still sends a client's next request over the connection of its last.
_OWN_CONNECTION = ("    http-reuse never", "    option http-server-close")
_SPARED = 2  # replicas, of which one is a spare
_FULL = "maxconn 128"  # at a time, over which the spare takes them; two processes share no wake-ups or caches
_HEAD_S = 10  # for a whole head, and for as much of a body as HAProxy holds
_KEEP_ALIVE_S = 90  # uvicorn's; clients find their connections as long as they would there
_HARD_STOP_S = 60  # a reload lets the old process finish its requests; one takes at most two minutes
_SPARE_S = 5.0  # beyond the time that the API gives itself, so that it answers first
_LONG_BODY_BYTES = 15_000  # what fits into HAProxy's buffer beside a head; shorter ones reach replicas whole
_REPLICA_SHARE = 0.1  # of the descriptors: connections to replicas, which clients share, listeners, checks
_TOO_FEW = 100
_TABLE = "stick-table type ipv6 size 200k expire 60s store conn_cur"

# Every status that HAProxy can make by itself (configuration manual, `http-error`).
_STATUSES = (400, 401, 403, 404, 405, 407, 408, 410, 413, 421, 422, 425, 429, 500, 501, 502, 503, 504)
_NO_REPLICA = "the API cannot be reached; repeat the request, a change with its Idempotency-Key"
_IN_DOUBT = "whether the request was carried out is unknown; repeat it, a change with its Idempotency-Key"
_LOST = {408: 400, 502: 503, 504: 503}
"""What HAProxy calls otherwise than we do."""
_SAFE = "method GET HEAD OPTIONS"
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
"""That some path of ours has; a replica's server calls most others malformed."""
_NEAR = "127.0.0.1"  # where HAProxy finds the replicas of its own node
_FAR_LOOK = "inter 500ms"
_FAR_WAY = "tcp-ut 2000ms"
_CHECK_S = 5  # for the answer to a look, once connected; Ray Serve's own
_LOST_NODES = (
    "    timeout connect 1500ms",
    f"    timeout check {_CHECK_S}s",
    "    option srvtcpka",
    "    srvtcpka-idle 1s",
    "    srvtcpka-intvl 1s",
    "    srvtcpka-cnt 2",
)
"""For backends with replicas of other nodes; without them all is on one machine, whose kernel never goes."""
_LIMIT = re.compile(r"\bobserve layer4 error-limit \d+ on-error mark-down\b")
_REFUSED = "observe layer4 error-limit 1 on-error mark-down"
"""Whoever refuses a connection has gone, or is about to."""
_MADE = "x-broker-made"
_LONG = (
    f"    acl is_long req.hdr_val(content-length) gt {_LONG_BODY_BYTES}",
    "    acl is_long req.hdr(transfer-encoding) -m found",
)
"""Which requests have a body that may be longer than what HAProxy holds."""


@dataclass(frozen=True, slots=True)
class _Body:
    """An error as HAProxy writes it; `name` may be one of its expressions."""

    status: int
    name: str
    text: str
    headers: tuple[tuple[str, str], ...] = ()


_NO_METHOD = _Body(405, MethodNotAllowed.name, "there is no such method", (("Allow", ", ".join(_METHODS)),))


def write_config(
    settings: Settings,
    ray: RayInput,
    *,
    threads: int,
    descriptors: int,
    files: Mapping[int, Path],
    certificate: Path,
    gateway: Path | None = None,
    is_open: bool = True,
) -> str:
    """The whole configuration.

    Args:
        files: the socket files of this node's replicas by their ports of 127.0.0.1.
        descriptors: that HAProxy may have open.
        certificate: the file with that of the port for TLS, where there is one, and with its key.
        gateway: where the gateway of this node answers `GET /connect`; None where it cannot be reached.
        is_open: whether it takes requests.

    Raises:
        IngressFault: the key is missing, or there are too few descriptors.
    """
    if not re.fullmatch(r"[\w-]{16,}", settings.ingress_key):
        raise IngressFault(
            "BROKER_INGRESS_KEY: must be 16 or more letters and digits, so that replicas know the ingress"
        )
    connections = min(settings.http_connections, int(descriptors * (1 - _REPLICA_SHARE)))
    if connections < _TOO_FEW:
        raise IngressFault(f"the ingress may open {descriptors} files, which is too few; raise `ulimit -n`")
    doors = [
        _public(settings, connections, ray.applications, certificate, has_gateway=gateway is not None),
        _operations(settings, connections, ray.applications),
    ]
    sections = [
        _globals(ray, threads, connections),
        _defaults(settings),
        *(doors if is_open else ()),
        _tables(),
        *(each for application in ray.applications for each in _backends(settings, application, files)),
        *(
            _connects(settings, application, files, gateway)
            for application in ray.applications
            if gateway is not None and application.name == APPLICATION
        ),
    ]
    return "\n".join(line for section in sections for line in section) + "\n"


def _globals(ray: RayInput, threads: int, connections: int) -> list[str]:
    return [
        "global",
        f"    stats socket {ray.admin} mode 600 level admin expose-fd listeners",
        "    stats timeout 30s",
        f"    server-state-base {ray.state_base}",
        f"    server-state-file {ray.state_file}",
        f"    maxconn {connections}",
        f"    nbthread {threads}",
        f"    hard-stop-after {_HARD_STOP_S}s",
        # Else HAProxy wants two descriptors for each connection, and does not start without.
        "    no strict-limits",
    ]


def _defaults(settings: Settings) -> list[str]:
    whole_s = int(settings.http_timeout_s + _SPARE_S)
    return [
        "defaults ours",
        "    mode http",
        "    timeout connect 5s",
        f"    timeout client {whole_s}s",
        f"    timeout server {whole_s}s",
        f"    timeout http-request {_HEAD_S}s",
        f"    timeout http-keep-alive {_KEEP_ALIVE_S}s",
        # Else a head that was refused in silence, above, may hold its connection for as long as a client may.
        "    timeout client-fin 2s",
        "    option abortonclose",
        "    option splice-request",
        "    option splice-response",
        "    option http-no-delay",
        "    option idle-close-on-response",
        # Only what no replica has seen is given to another one.
        "    option redispatch 1",
        "    retry-on conn-failure",
        "    load-server-state-from-file global",
        "    balance leastconn",
        "defaults behind from ours",
        *(f"    {_http_error(_body_of(status))}" for status in _STATUSES),
    ]


def _public(
    settings: Settings,
    connections: int,
    applications: Sequence[Application],
    certificate: Path,
    *,
    has_gateway: bool,
) -> list[str]:
    # Rules of a session see the address of a PROXY header, those of a connection the proxy's. The latter cost
    # least where connections are refused, so they are kept where no such header can come.
    level = "session" if settings.proxy_protocol else "connection"
    return [
        f"frontend {PUBLIC} from ours",
        f"    bind {_place(settings.bind_host, settings.http_port)} proto h1",
        *_encrypted(settings, certificate),
        *_proxy_headers(settings.proxy_protocol),
        *_front_door(settings.trusted_proxies, level),
        *_counted(settings, connections, PUBLIC, level),
        *_silence(),
        *_requests(),
        *(
            line
            for application in applications
            if has_gateway and application.name == APPLICATION
            for line in _connect_route()
        ),
        *_routes(applications),
    ]


def _encrypted(settings: Settings, certificate: Path) -> list[str]:
    if not settings.http_tls_port:
        return []
    place = _place(settings.bind_host, settings.http_tls_port)
    return [f"    bind {place} ssl crt {certificate} ssl-min-ver TLSv1.2 alpn http/1.1"]


def _operations(settings: Settings, connections: int, applications: Iterable[Application]) -> list[str]:
    routes = orjson.dumps({application.prefix: application.name for application in applications}).decode()
    answer = f"content-type application/json lf-string {_text(routes)} hdr X-Request-Id %[var(txn.id)]"
    return [
        f"frontend {OPERATIONS} from ours",
        f"    bind {_place(settings.ops_host, settings.operations_port)} proto h1",
        *_counted(settings, connections, OPERATIONS),
        *_silence(),
        *_requests(),
        f"    http-request return status 200 {answer} {_header(NO_SNIFF)} if {{ path /-/routes }}",
        *(_near_route(application) for application in applications if application.name == APPLICATION),
        *_routes(applications),
    ]


def _tables() -> list[str]:
    nothing = _answer("http-request", _Body(503, Unavailable.name, _NO_REPLICA, (("Retry-After", "1"),)))
    return [
        "backend uploads from behind",
        f"    {_TABLE}",
        *(
            line
            for door in (PUBLIC, OPERATIONS)
            for line in (f"backend {_networks(door)} from behind", f"    {_TABLE}")
        ),
        "backend nothing from behind",
        f"    {nothing}",
    ]


def _backends(settings: Settings, application: Application, files: Mapping[int, Path]) -> list[list[str]]:
    """The backends of the module's docstring for an application of ours; one for any other."""
    checks = [f"    {line}" for line in application.checks]
    if not _is_ours(application):
        servers = [f"    {line}" for line in application.servers]
        return [[f"backend {application.backend} from ours", "    http-reuse always", *checks, *servers]]
    _, alone, near = _names(application)
    shared, *servers = _spared(settings, application)
    followed = [_followed(line, application.backend) for line in servers]
    lost = _LOST_NODES if any(map(_is_far, servers)) else ()
    limits = [*_limits(settings, application), *lost]
    rules = [*_counted_bodies(settings), *_rules(settings), *limits]
    return [
        [
            f"backend {application.backend} from behind",
            *_rules(settings),
            *limits,
            "    http-reuse always",
            "    retry-on empty-response",
            "    retries 0",
            *checks,
            f"    {shared}",
            *_by_files(servers, files),
        ],
        [
            f"backend {alone} from behind",
            *rules,
            *_OWN_CONNECTION,
            f"    {shared}",
            *_by_files(followed, files),
        ],
        [
            f"backend {near} from behind",
            *rules,
            *_OWN_CONNECTION,
            *_by_files(
                (line for line in followed if not _is_far(line) and not line.endswith(" backup")), files
            ),
        ],
    ]


def _connects(
    settings: Settings, application: Application, files: Mapping[int, Path], gateway: Path | None
) -> list[str]:
    """The backend of `GET /connect`."""
    servers = [line for line in application.servers if not line.endswith(" backup")]
    followed = [f"{_followed(_watched(line), application.backend)} backup" for line in servers]
    return [
        f"backend {_CONNECTS} from behind",
        *_rules(settings),
        *(_LOST_NODES if any(map(_is_far, servers)) else ()),
        "    http-reuse always",
        "    retry-on all-retryable-errors",
        "    retries 2",
        f"    timeout server {_CONNECT_S}s",
        # The gateway refuses who has no secret, which is an answer.
        f"    option httpchk GET {CONNECT}",
        "    http-check expect status 403",
        f"    server {_GATEWAY} unix@{gateway} maxconn {_CONNECTIONS} {_GATEWAY_LOOK}",
        *_by_files(followed, files),
    ]


def _connect_route() -> list[str]:
    """What the gateway answers: requests of this form that have nothing else for the API to look at."""
    once = " ".join(f"!{{ req.fhdr_cnt({name}) gt 1 }}" for name in ("host", "origin", "x-request-id"))
    absent = ("authorization", "content-length", "transfer-encoding")
    without = " ".join(f"!{{ req.fhdr({name}) -m found }}" for name in absent)
    reserved = " ".join(f"programId={name}" for name in RESERVED_IDS)
    return [
        f"    acl is_connect path {CONNECT}",
        "    acl takes_json req.fhdr_cnt(accept) eq 0",
        "    acl takes_json req.fhdr(accept) -m str */* application/json",
        rf"    acl is_of_gateway url -m reg '^{CONNECT}(\?(programId=[A-Za-z0-9._~:-]{{1,128}})?)?$'",
        f"    use_backend {_CONNECTS} if is_connect {{ method GET }} {{ srv_is_up({_CONNECTS}/{_GATEWAY}) }}"
        f" is_of_gateway takes_json {without} {once} !{{ query -m str {reserved} }}",
    ]


def _by_files(servers: Iterable[str], files: Mapping[int, Path]) -> list[str]:
    """The lines of replicas; those of this node are called at their files, which takes half of TCP's time."""
    lines = []
    for line in servers:
        file = None if _is_far(line) else files.get(_port(line)[0])
        if file is not None:
            word, name, _, rest = line.split(" ", 3)
            line = f"{word} {name} unix@{file} {rest}"
        lines.append(f"    {line}")
    return lines


def _limits(settings: Settings, application: Application) -> list[str]:
    """The image proxy has a time of its own, in which a replica that is asked for first starts too."""
    if application.name != IMAGES:
        return []
    return [f"    timeout server {int(settings.images_timeout_s + _SPARE_S)}s"]


def _spared(settings: Settings, application: Application) -> list[str]:
    """How requests are balanced, and the servers. Where one replica is enough, a second is its spare.

    It takes requests when the first one has died, or has as many as it should have at a time: a replica that
    nobody needs costs no time and shares no caches, and what a replica counts for an address is whole. Ray
    names replicas in an order that changes; the one with the lower port is the first, as a rule the older.
    """
    servers = [_watched(_LIMIT.sub(_REFUSED, line)) for line in application.servers]
    replicas = sorted((line for line in servers if not line.endswith(" backup")), key=_port)
    if application.name != APPLICATION or settings.api_replicas_min > 1 or len(replicas) != _SPARED:
        return ["balance leastconn", *servers]
    first, spare = replicas
    waiting = [line for line in servers if line.endswith(" backup")]
    return ["balance first", f"{first} {_FULL}", spare, *waiting]


def _watched(server: str) -> str:
    """The line of a replica, which says how one of another node is looked at."""
    if not _is_far(server):
        return server
    line, is_backup = server.removesuffix(" backup"), server.endswith(" backup")
    return f"{line} {_FAR_LOOK} {_FAR_WAY}{' backup' if is_backup else ''}"


def _is_far(server: str) -> bool:
    return not server.split()[2].startswith(f"{_NEAR}:")


def _port(server: str) -> tuple[int, str]:
    """By which replicas are sorted: the port, and the address for those of other nodes."""
    host, _, port = server.split()[2].rpartition(":")
    return int(port), host


def _is_ours(application: Application) -> bool:
    return application.name.partition("-")[0] == APPLICATION


def _names(application: Application) -> list[str]:
    return [f"{kind}-{application.name}" for kind in KINDS]


def _near_route(application: Application) -> str:
    """Lead `/metrics` to a replica of this node while one is up."""
    near = _names(application)[-1]
    return f"    use_backend {near} if {{ path /metrics }} {{ nbsrv({near}) gt 0 }}"


def _followed(server: str, backend: str) -> str:
    """A server that is up when it is up in `backend`, and takes as many requests as there."""
    _, name, address, *rest = server.split()
    limit = f" {_FULL}" if server.endswith(_FULL) else ""
    far = f" {_FAR_WAY}" if _is_far(server) else ""
    return (
        f"server {name} {address} track {backend}/{name}{limit}{far}{' backup' if 'backup' in rest else ''}"
    )


def _counted_bodies(settings: Settings) -> list[str]:
    """How many long bodies one address may send at a time."""
    too_many = _Body(429, SlowDown.name, "too many long bodies from one address", (("Retry-After", "1"),))
    limit = settings.http_long_bodies_per_address
    counted = [
        *_LONG,
        "    http-request track-sc1 src,ipmask(32,64) table uploads if is_long !{ var(sess.front) -m found }",
        f"    {_answer('http-request', too_many)} if {{ sc1_conn_cur gt {limit} }}",
    ]
    return counted if limit else []


def _rules(settings: Settings) -> list[str]:
    """What holds for requests of our own applications and for their replies."""
    secret = f'"{settings.ingress_key} %f %[src]"'
    doubtful = _Body(503, "%[var(txn.doubt,unavailable)]", _IN_DOUBT, (("Retry-After", "1"),))
    shown = " ".join(map(str, sorted(set(_LOST.values()))))
    malformed = _Body(400, InvalidRequest.name, "the request is malformed")
    return [
        f"    {_answer('http-request', _NO_METHOD)} unless {{ method {' '.join(_METHODS)} }}",
        f"    http-request set-header {HEADER} {secret}",
        # What a stranger says of where it comes from; a front door's word is believed, see `_front_door`.
        "    http-request del-header x-forwarded- -m beg unless { var(sess.front) -m found }",
        "    http-request del-header upgrade",
        f"    http-request wait-for-body time {_HEAD_S}s",
        f"    http-response allow if {{ res.hdr({NO_SNIFF[0].decode()}) -m found }}",
        f"    {_answer('http-response', malformed)} if {{ status 400 }}",
        f"    {_answer('http-response', doubtful)}",
        # Nothing below is about a success, which most replies are.
        "    http-after-response allow if { status lt 400 }",
        f"    acl is_made res.hdr({_MADE}) -m found",
        *(
            f"    http-after-response set-status {ours} if {{ status {theirs} }} is_made"
            for theirs, ours in _LOST.items()
        ),
        f"    http-after-response del-header {_MADE} if {{ status {shown} }}",
    ]


def _proxy_headers(networks: Iterable[str]) -> list[str]:
    """Connections of these begin with a PROXY header, whose address is `src` from then on.

    From anybody else it is no HTTP, and refused as such. HAProxy closes a connection whose header is wrong,
    or does not come within the time of a client: HAProxy 2.8 has no other one for it.
    """
    listed = " ".join(networks)
    return [f"    tcp-request connection expect-proxy layer4 if {{ src {listed} }}"] if listed else []


def _front_door(networks: Iterable[str], level: str) -> list[str]:
    """Connections of front doors are not counted as one caller's, and what they say of theirs is believed."""
    listed = " ".join(networks)
    return [f"    tcp-request {level} set-var(sess.front) bool(true) if {{ src {listed} }}"] if listed else []


def _counted(settings: Settings, connections: int, door: str, level: str = "connection") -> list[str]:
    """How many connections one address and one network may have at a door.

    An address has a fixed limit, and a network one that shrinks with the square of the share that is free, so
    that some always are; gateways count likewise, and `native/server/src/shares.rs` has the reasons. Both
    doors share what HAProxy may have.
    """
    limit = settings.http_connections_per_address
    a_client = "unless { var(sess.front) -m found }"
    counted = [
        f"    {_TABLE}",
        f"    tcp-request {level} track-sc0 src,ipmask(32,64) {a_client}",
        f"    tcp-request {level} reject if {{ sc0_conn_cur gt {limit} }}",
        f"    tcp-request {level} track-sc2 src,ipmask(24,48) table {_networks(door)} {a_client}",
        f"    tcp-request {level} set-var(sess.others) fe_conn({OPERATIONS if door == PUBLIC else PUBLIC})",
        f"    tcp-request {level} set-var(sess.free) fe_conn,add(sess.others),neg,add({connections + 1})",
        f"    tcp-request {level} set-var(sess.limit) var(sess.free),mul(sess.free),div({connections})",
        f"    tcp-request {level} reject if {{ sc2_conn_cur gt 1 }} {{ sc2_conn_cur,sub(sess.limit) gt 0 }}",
    ]
    return counted if limit else []


def _networks(door: str) -> str:
    return f"networks-of-{door}"


def _requests() -> list[str]:
    """The rules for every request, whatever its destination."""
    old = _Body(400, InvalidRequest.name, "the request must be HTTP/1.1 or HTTP/1.0")
    no_path = _Body(404, NotFound.name, "the target of a request is a path")
    return [
        "    acl is_named req.fhdr(x-request-id) -m reg ^[!-~]{1,128}$",
        "    http-request set-header x-request-id %[uuid] unless is_named",
        "    http-request set-var(txn.id) req.fhdr(x-request-id)",
        f"    http-request set-var(txn.doubt) str({OutcomeUnknown.name}) unless {{ {_SAFE} }}",
        f"    {_answer('http-request', old)} unless {{ req.ver -m beg 1. }}",
        f"    {_answer('http-request', _NO_METHOD)} if {{ method CONNECT TRACE }}",
        # It leads to no application, and the answer would be that there is none at the moment.
        f"    {_answer('http-request', no_path)} unless {{ path_beg / }}",
    ]


def _routes(applications: Iterable[Application]) -> list[str]:
    """The longest prefix first; no application, no replica."""
    return [
        *_LONG,
        *(line for application in applications for line in _route(application)),
        "    default_backend nothing",
    ]


def _route(application: Application) -> list[str]:
    """The backend that nearly all requests take comes first: each rule above it costs all of them."""
    asked, is_asked = _asked(application)
    if not _is_ours(application):
        return [*asked, f"    use_backend {application.backend}{_if(is_asked)}"]
    _, alone, _ = _names(application)
    return [
        *asked,
        f"    use_backend {application.backend}{_if(is_asked, '!is_long', '!{ stopping }')}",
        f"    use_backend {alone}{_if(is_asked)}",
    ]


def _asked(application: Application) -> tuple[list[str], str]:
    """The condition that a path is the application's, which for `/` each one is, and its name."""
    if application.prefix == "/":
        return [], ""
    is_asked = f"to_{application.name}"
    return [
        f"    acl {is_asked} path {application.prefix}",
        f"    acl {is_asked} path_beg {application.prefix}/",
    ], is_asked


def _if(*conditions: str) -> str:
    return " if " + " ".join(filter(None, conditions)) if any(conditions) else ""


def _silence() -> list[str]:
    return [f"    errorfile {status} /dev/null" for status in _STATUSES]


def _body_of(status: int) -> _Body:
    if status == 408:
        return _Body(status, InvalidRequest.name, "the request did not arrive in time")
    if status in (502, 504):
        return _Body(status, "%[var(txn.doubt,unavailable)]", _IN_DOUBT, (("Retry-After", "1"),))
    known: Mapping[int, tuple[type[BrokerError], str]] = {
        404: (NotFound, "there is nothing at this path"),
        405: (MethodNotAllowed, "there is no such method"),
        413: (PayloadTooLarge, "the request is too large"),
        429: (SlowDown, "too many requests from one address"),
        500: (InternalError, "an internal error"),
        503: (Unavailable, _NO_REPLICA),
    }
    kind, text = known.get(status, (InvalidRequest, "the request is malformed"))
    return _Body(status, kind.name, text, (("Retry-After", "1"),) if kind.retryable else ())


def _http_error(body: _Body) -> str:
    made = f" hdr {_MADE} 1" if body.status in _LOST else ""
    return f"http-error status {body.status} {_content(body)}{made}"


def _answer(phase: str, body: _Body) -> str:
    return f"{phase} return status {body.status} {_content(body)}"


def _content(body: _Body) -> str:
    status = _LOST.get(body.status, body.status)
    told = f'{{"error":"{body.name}","error_description":"{body.text}","status":{status}}}'
    headers = [("Cache-Control", "no-store"), *body.headers]
    written = "".join(f' hdr {name} "{value}"' for name, value in headers)
    fixed = " ".join(_header(header) for header in EVERY_REPLY)
    named = "hdr X-Request-Id %[var(txn.id)]"
    return f"content-type application/json lf-string {_quoted(told)} {named} {fixed}{written}"


def _header(header: tuple[bytes, bytes]) -> str:
    name, value = header
    return f'hdr {name.decode()} "{value.decode()}"'


def _text(text: str) -> str:
    """A text of HAProxy's that stands for itself."""
    return _quoted(text.replace("%", "%%"))


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$")
    return f'"{escaped}"'


def _place(host: str, port: int) -> str:
    if ":" in host:
        both = " v4v6" if host == "::" else ""
        return f"[{host}]:{port}{both}"
    return f"{host}:{port}"
