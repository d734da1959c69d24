"""The ingress from outside: HAProxy with our configuration in the place of Ray's, real sockets, no Ray."""

import asyncio
import os
import resource
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest

from broker.deployments import ingress_start
from broker.deployments.ray_internals import haproxy
from broker.rest.plain_heads import read_plain_head
from tests import proxy_header
from tests.deployments.ingress_stage import (
    FRONT_DOOR,
    KEY,
    NAMING_DOOR,
    Ingress,
    Replica,
    call,
    get,
    parse,
    read_all,
    running_ingress,
)

GET = b"GET /x HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"

# What HAProxy does not read as a request: it hangs up, since there it can only say its own page.
NO_REQUEST = {
    "garbage": b"GARBAGE\r\n\r\n",
    "HTTP/0.9": b"GET /x\r\n\r\n",
    "unknown version": b"GET /x HTTP/9.9\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20,
    "header of 1 MB": GET + b"X-A: " + b"a" * 1_000_000 + b"\r\n\r\n",
    "5,000 headers": GET + b"".join(b"X-%d: a\r\n" % n for n in range(5_000)) + b"\r\n",
    "space in the target": b"GET /a b HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "control character in a header": GET + b"X-A: a\x00b\r\n\r\n",
    "space before the colon": GET + b"Content-Length : 5\r\n\r\n",
    "two hosts": GET + b"Host: other\r\n\r\n",
    "two lengths": GET + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    "negative length": GET + b"Content-Length: -5\r\n\r\n",
    "chunk of no size": CHUNKED + b"zz\r\n{}\r\n0\r\n\r\n",
    "unknown coding": POST + b"Transfer-Encoding: gzip\r\n\r\n",
    "control character in a name": GET + b"X\x01: a\r\n\r\n",
}


@pytest.fixture(scope="module")
def replica() -> Iterator[Replica]:
    replica = Replica("one")
    yield replica
    replica.end()


@pytest.fixture(scope="module")
def ingress(replica: Replica) -> Iterator[Ingress]:
    with running_ingress(replica, HTTP_LONG_BODIES_PER_ADDRESS="3") as ingress:
        yield ingress


@pytest.fixture
def another() -> Iterator[Ingress]:
    ingress = Ingress()
    yield ingress
    ingress.end()


def assert_ours(reply: bytes, status: int, error: str) -> dict[str, str]:
    """It is the product's own error, with all that every reply has; returns its headers."""
    found, headers, body = parse(reply)
    assert (found, body["error"], body["status"]) == (status, error, status)
    assert body["error_description"]
    assert headers["content-type"] == "application/json"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert headers["access-control-allow-origin"] == "*"
    assert len(headers["x-request-id"]) == 36
    assert ("retry-after" in headers) == (status in (429, 503))
    assert "x-broker-made" not in headers
    return headers


@pytest.mark.parametrize("request_bytes", NO_REQUEST.values(), ids=NO_REQUEST)
def test_what_is_no_request_gets_our_error_or_none(ingress: Ingress, request_bytes: bytes) -> None:
    reply = call(ingress.port, request_bytes)
    if reply:
        assert_ours(reply, 400, "invalid_request")


@pytest.mark.parametrize("request_bytes", NO_REQUEST.values(), ids=NO_REQUEST)
def test_what_is_no_request_gets_no_other_reply_on_a_kept_connection(
    ingress: Ingress, request_bytes: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", ingress.port), 20) as peer:
        peer.sendall(GET + b"\r\n")
        told = peer.recv(65_536)
        assert told.startswith(b"HTTP/1.1 200 ")
        try:
            peer.sendall(request_bytes)
        except OSError:
            return
        if reply := read_all(peer):
            assert_ours(reply, 400, "invalid_request")


@pytest.mark.parametrize("connection", ["", "Connection: keep-alive\r\n", "Connection: close\r\n"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_get_as_clients_write_it_reaches_replicas_as_a_plain_one(
    ingress: Ingress, replica: Replica, method: str, connection: str
) -> None:
    lines = (
        f"{method} /Plain?url=http%3A%2F%2Fx HTTP/1.1\r\nHOST:Localhost:1\r\nUser-Agent: A  b: (c)\r\n"
        f"Accept:  image/avif,*/*;q=0.8 \r\nCookie: a=b; c=d\r\nSec-Fetch-Mode: no-cors\r\n{connection}\r\n"
    )
    with socket.create_connection(("127.0.0.1", ingress.port), 20) as peer:
        peer.sendall(lines.encode())
        assert peer.recv(65_536).startswith(b"HTTP/1.1 200 ")
    head = read_plain_head(replica.heads[-1])
    if method == "HEAD":
        assert head is None
        return
    assert head is not None, replica.heads[-1]
    assert head.target == b"/Plain?url=http%3A%2F%2Fx"
    assert head.headers[b"host"] == b"Localhost:1"
    assert head.headers[b"x-broker-ingress"] == f"{KEY} public 127.0.0.1".encode()
    assert len(head.headers[b"x-request-id"]) == 36
    assert head.headers[b"accept"] == b"image/avif,*/*;q=0.8"


def test_what_is_refused_in_silence_is_closed_soon(ingress: Ingress) -> None:
    began_s = time.monotonic()
    for name in ("two lengths", "header of 1 MB", "garbage"):
        with socket.create_connection(("127.0.0.1", ingress.port), 60) as peer:
            with suppress(OSError):
                peer.sendall(NO_REQUEST[name])
                peer.shutdown(socket.SHUT_WR)
            read_all(peer)
    assert time.monotonic() - began_s < 30  # a client may be silent for a minute and more


def test_refused_heads_of_clients_who_have_gone_hold_no_connection(ingress: Ingress) -> None:
    head = NO_REQUEST["header of 1 MB"][:17_000]
    for number in range(2_000):
        with socket.create_connection(("127.0.0.1", ingress.port), 20, ("127.0.0.4", 0)) as peer:
            peer.sendall(head)
            if not number % 10:
                assert read_all(peer) == b""
    time.sleep(8)  # without asking meanwhile, which would wake a process whose clock stands still
    assert ingress.connections() < 100


def test_a_chunk_that_goes_wrong_later_is_our_400(ingress: Ingress) -> None:
    with socket.create_connection(("127.0.0.1", ingress.port), 20) as peer:
        peer.sendall(CHUNKED + b"5\r\nhello\r\n")
        time.sleep(0.3)  # it must be read by itself
        peer.sendall(b"zz\r\n")
        assert_ours(read_all(peer), 400, "invalid_request")


@pytest.mark.parametrize("line", ["OPTIONS *", "GET *", "PUT *", "DELETE x"])
def test_a_target_that_is_no_path_is_not_found(ingress: Ingress, replica: Replica, line: str) -> None:
    seen = len(replica.seen)
    request = f"{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert_ours(call(ingress.port, request.encode()), 404, "not_found")
    assert len(replica.seen) == seen


@pytest.mark.parametrize("method", ["CONNECT", "TRACE"])
def test_methods_for_proxies_are_refused(ingress: Ingress, replica: Replica, method: str) -> None:
    seen = len(replica.seen)
    target = b"internal:22" if method == "CONNECT" else b"/x"
    reply = call(
        ingress.port,
        method.encode() + b" " + target + b" HTTP/1.1\r\nHost: internal:22\r\nConnection: close\r\n\r\n",
    )
    assert "GET" in assert_ours(reply, 405, "method_not_allowed")["allow"]
    assert len(replica.seen) == seen


@pytest.mark.parametrize("method", ["BREW", "get", "PROPFIND"])
def test_a_method_that_no_path_has_is_refused(ingress: Ingress, replica: Replica, method: str) -> None:
    seen = len(replica.seen)
    named = f"Host: localhost\r\nX-Request-Id: {'i' * 36}\r\nConnection: close\r\n\r\n"
    request = f"{method} /x HTTP/1.1\r\n{named}"
    headers = assert_ours(call(ingress.port, request.encode()), 405, "method_not_allowed")
    assert headers["allow"] == "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
    assert headers["x-request-id"] == "i" * 36
    assert len(replica.seen) == seen


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_a_method_that_some_path_has_reaches_a_replica(ingress: Ingress, method: str) -> None:
    request = f"{method} /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    assert call(ingress.port, request.encode()).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("path", ["/drop", "/never", "/garbage", "/half", "/huge", "/lengths"])
@pytest.mark.parametrize(("method", "error"), [("GET", "unavailable"), ("POST", "outcome_unknown")])
def test_a_change_that_may_have_been_made_is_in_doubt(
    ingress: Ingress, path: str, method: str, error: str
) -> None:
    request = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    assert_ours(call(ingress.port, request.encode()), 503, error)


KEYED = b"Idempotency-Key: k\r\n"
SHORT = b"Content-Length: 2\r\n\r\n{}"
CHUNKS = b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
LONG = b"Content-Length: 20000\r\n\r\n" + b" " * 20_000


@pytest.mark.parametrize(
    ("method", "rest", "error"),
    [
        ("GET", b"\r\n", "unavailable"),
        ("POST", SHORT, "outcome_unknown"),
        ("POST", KEYED + SHORT, "outcome_unknown"),
        ("POST", CHUNKS, "outcome_unknown"),
        ("POST", KEYED + CHUNKS, "outcome_unknown"),
        ("POST", LONG, "outcome_unknown"),
    ],
    ids=["safe", "change", "change with a key", "chunks", "chunks with a key", "long"],
)
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "later"])
def test_a_lost_request_is_answered_and_not_repeated(
    ingress: Ingress, replica: Replica, method: str, rest: bytes, error: str, is_first: bool
) -> None:
    for _ in range(4):  # which leave kept connections to the replica
        call(ingress.port, POST + b"Connection: close\r\n" + SHORT)
        get(ingress.port, "/x")
    with socket.create_connection(("127.0.0.1", ingress.port), 20) as peer:
        if not is_first:
            peer.sendall(GET + b"\r\n")
            assert peer.recv(65_536).startswith(b"HTTP/1.1 200 ")
        seen = replica.seen.count("/drop")
        peer.sendall(f"{method} /drop HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n".encode() + rest)
        assert_ours(read_all(peer), 503, error)
        assert replica.seen.count("/drop") - seen == 1


@pytest.mark.parametrize(
    ("request_bytes", "error"),
    [
        (b"GET /end HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", "unavailable"),
        (b"POST /end HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + SHORT, "outcome_unknown"),
        (
            b"POST /end HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + KEYED + SHORT,
            "outcome_unknown",
        ),
    ],
    ids=["safe", "change", "change with a key"],
)
def test_the_end_of_the_only_replica_is_no_silence(
    another: Ingress, request_bytes: bytes, error: str
) -> None:
    replica = Replica("last")
    another.run({"broker": ("/", [replica])})
    another.until_up(1)
    for _ in range(4):
        assert get(another.port, "/x")[0] == 200
        assert parse(call(another.port, POST + b"Connection: close\r\n" + SHORT))[0] == 200
    assert_ours(call(another.port, request_bytes), 503, error)
    for _ in range(3):
        assert parse(call(another.port, request_bytes))[0] == 503


def test_a_process_that_is_replaced_sends_nothing_to_replicas_that_leave(another: Ingress) -> None:
    first, second = Replica("first"), Replica("second")
    another.run({"broker": ("/", [first, second])})
    another.until_up(2)
    for _ in range(6):
        assert parse(call(another.port, POST + b"Connection: close\r\n" + SHORT))[0] == 200
    with ExitStack() as stack:
        slow = [
            stack.enter_context(socket.create_connection(("127.0.0.1", another.port), 20)) for _ in range(8)
        ]
        for peer in slow:
            peer.sendall(POST + b"Connection: close\r\n" + SHORT[:-1])
        time.sleep(0.5)  # the old process has them
        another.run({"broker": ("/", [second])})
        seen = len(first.seen)
        for peer in slow:
            peer.sendall(SHORT[-1:])
        assert {parse(read_all(peer))[2]["by"] for peer in slow} == {"second"}
    assert len(first.seen) == seen
    first.end()
    second.end()


def test_a_process_that_is_replaced_goes_on_with_replicas_that_leave_where_it_knows_no_other(
    another: Ingress,
) -> None:
    """Ray may exchange all replicas in one step; those that leave listen until no ingress names them."""
    first, second = Replica("first"), Replica("second")
    another.run({"broker": ("/", [first])})
    another.until_up(1)
    with ExitStack() as stack:
        slow = [
            stack.enter_context(socket.create_connection(("127.0.0.1", another.port), 20)) for _ in range(8)
        ]
        for peer in slow:
            peer.sendall(POST + b"Connection: close\r\n" + SHORT[:-1])
        time.sleep(0.5)  # the old process has them
        another.run({"broker": ("/", [second])})
        for peer in slow:
            peer.sendall(SHORT[-1:])
        assert {(parse(reply)[0], parse(reply)[2].get("by")) for reply in map(read_all, slow)} == {
            (200, "first")
        }
    first.end()
    second.end()


@pytest.mark.parametrize(
    ("status", "shown", "get_error", "post_error"),
    [
        (400, 400, "invalid_request", "invalid_request"),
        (500, 503, "unavailable", "outcome_unknown"),
        (404, 503, "unavailable", "outcome_unknown"),
        (503, 503, "unavailable", "outcome_unknown"),
        (200, 503, "unavailable", "outcome_unknown"),
    ],
)
def test_a_reply_that_is_not_ours_is_exchanged(
    ingress: Ingress, status: int, shown: int, get_error: str, post_error: str
) -> None:
    for method, error in (("GET", get_error), ("POST", post_error)):
        request = f"{method} /plain/{status} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        reply = call(ingress.port, request.encode())
        assert b"plain text" not in reply
        assert_ours(reply, shown, error)


@pytest.mark.parametrize("status", [200, 400, 404, 408, 500, 502, 503, 504])
def test_a_reply_of_ours_goes_through_as_it_is(ingress: Ingress, status: int) -> None:
    found, _, body = get(ingress.port, f"/ours/{status}")
    assert (found, body["by"]) == (status, "one")


def test_a_request_has_one_id_and_keeps_its_own(ingress: Ingress) -> None:
    for given, expected in (("mine", ["mine"]), ("x" * 128, ["x" * 128])):
        _, _, body = get(ingress.port, "/x", headers=f"X-Request-Id: {given}\r\n")
        assert body["headers"]["x-request-id"] == expected
        _, headers, _ = get(ingress.port, "/plain/500", headers=f"X-Request-Id: {given}\r\n")
        assert headers["x-request-id"] == given
    for given in ("not mine", "x" * 129, "\xe9"):
        _, _, body = get(ingress.port, "/x", headers=f"X-Request-Id: {given}\r\n")
        (made,) = body["headers"]["x-request-id"]
        assert len(made) == 36


def test_replicas_hear_the_address_of_the_connection_and_nothing_that_a_stranger_wrote(
    ingress: Ingress,
) -> None:
    forged = (
        "X-Forwarded-For: 192.0.2.7\r\nX-FORWARDED-FOR: 192.0.2.8\r\nX-Forwarded-Proto: https\r\n"
        f"X-Broker-Ingress: {KEY} operations 192.0.2.9\r\n"
    )
    for source in ("127.0.0.1", "127.0.0.2", "127.0.0.3"):
        _, _, body = get(ingress.port, "/x", source, headers=forged)
        assert body["headers"]["x-broker-ingress"] == [f"{KEY} public {source}"]
        assert not {name for name in body["headers"] if name.startswith("x-forwarded")}


def test_what_a_front_door_says_of_its_callers_is_handed_on(ingress: Ingress) -> None:
    told = "X-Forwarded-For: 6.6.6.6, 192.0.2.7\r\nX-Forwarded-For: 192.0.2.8\r\n"
    _, _, body = get(ingress.port, "/x", FRONT_DOOR, headers=told + "X-Broker-Ingress: forged\r\n")
    assert body["headers"]["x-forwarded-for"] == ["6.6.6.6, 192.0.2.7", "192.0.2.8"]
    assert body["headers"]["x-broker-ingress"] == [f"{KEY} public {FRONT_DOOR}"]


def ask_as(ingress: Ingress, header: bytes, source: str = NAMING_DOOR, headers: str = "") -> bytes:
    """The reply to a request with a PROXY header before it."""
    request = f"GET /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n"
    return call(ingress.port, header + request.encode(), source)


@pytest.mark.parametrize("version", [proxy_header.line, proxy_header.binary])
def test_a_proxy_header_names_the_caller(ingress: Ingress, version: Callable[[str], bytes]) -> None:
    forged = f"X-Forwarded-For: 6.6.6.6\r\nX-Broker-Ingress: {KEY} operations 192.0.2.9\r\n"
    for source in ("192.0.2.7", "2001:db8::7", "127.0.0.2"):
        _, _, body = parse(ask_as(ingress, version(source), headers=forged))
        assert body["headers"]["x-broker-ingress"] == [f"{KEY} public {source}"]
        assert "x-forwarded-for" not in body["headers"]


def test_a_front_door_behind_another_one_and_one_that_speaks_for_itself_are_front_doors(
    ingress: Ingress,
) -> None:
    told = "X-Forwarded-For: 192.0.2.8\r\n"
    for header, peer in ((proxy_header.binary(FRONT_DOOR), FRONT_DOOR), (proxy_header.LOCAL, NAMING_DOOR)):
        _, _, body = parse(ask_as(ingress, header, headers=told))
        assert body["headers"]["x-broker-ingress"] == [f"{KEY} public {peer}"]
        assert body["headers"]["x-forwarded-for"] == ["192.0.2.8"]


@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.2", FRONT_DOOR])
@pytest.mark.parametrize("version", [proxy_header.line, proxy_header.binary])
def test_a_proxy_header_from_anybody_else_is_refused(
    ingress: Ingress, replica: Replica, version: Callable[[str], bytes], source: str
) -> None:
    before = len(replica.seen)
    assert ask_as(ingress, version("192.0.2.7"), source) == b""
    assert len(replica.seen) == before


@pytest.mark.parametrize("fault", proxy_header.MALFORMED)
def test_a_malformed_proxy_header_closes_the_connection(
    ingress: Ingress, replica: Replica, fault: str
) -> None:
    before = len(replica.seen)
    assert ask_as(ingress, proxy_header.MALFORMED[fault]) == b""
    assert len(replica.seen) == before


def test_the_door_for_operators_reads_no_proxy_header(ingress: Ingress) -> None:
    request = b"GET /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert parse(call(ingress.ops_port, request, NAMING_DOOR))[0] == 200
    assert call(ingress.ops_port, proxy_header.line("192.0.2.7") + request, NAMING_DOOR) == b""


def test_only_the_door_for_operators_is_named_so_and_tells_the_routes(ingress: Ingress) -> None:
    _, _, body = get(ingress.ops_port, "/metrics", headers="X-Broker-Ingress: forged\r\n")
    assert body["headers"]["x-broker-ingress"] == [f"{KEY} operations 127.0.0.1"]
    assert get(ingress.ops_port, "/-/routes")[2] == {"/": "broker"}
    assert get(ingress.port, "/-/routes")[2]["by"] == "one"  # which a replica says is nothing


def test_the_page_of_figures_is_of_the_node_that_is_asked(another: Ingress) -> None:
    near, far = Replica("near"), Replica("far", "127.0.0.3")
    another.run({"broker": ("/", [near, far])})
    another.until_up(2)
    assert {get(another.ops_port, "/metrics")[2]["by"] for _ in range(6)} == {"near"}
    assert {get(another.ops_port, "/readyz")[2]["by"] for _ in range(6)} <= {"near", "far"}
    another.run({"broker": ("/", [far])})
    another.until_up(1)
    assert get(another.ops_port, "/metrics")[2]["by"] == "far"
    near.end()
    far.end()


@pytest.mark.parametrize(("has_file", "way"), [(True, "AF_UNIX"), (False, "AF_INET")])
@pytest.mark.parametrize("length", [0, 20_000], ids=["kept", "alone"])
def test_a_replica_of_this_node_is_called_at_its_socket_file_or_else_by_tcp(
    another: Ingress, has_file: bool, way: str, length: int
) -> None:
    replica = Replica("one", has_file=has_file)
    another.run({"broker": ("/", [replica])})
    another.until_up(1)
    head = f"POST /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    status, _, told = parse(call(another.port, head.encode() + b"." * length))
    assert (status, told["by"], told["way"]) == (200, "one", way)
    replica.end()


@pytest.mark.parametrize("act", ["drop", "garbage", "half"])
def test_a_long_body_on_a_kept_connection_is_never_lost_in_silence(ingress: Ingress, act: str) -> None:
    """The client's connection is kept between the two, that to the replica is not."""
    body = b"." * 20_000
    with socket.create_connection(("127.0.0.1", ingress.port), 20) as peer:
        for target in ("x", act):
            peer.sendall(
                f"POST /{target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n".encode()
            )
            peer.sendall((b"Connection: close\r\n" if target == act else b"") + b"\r\n" + body)
            if target == "x":
                assert peer.recv(65_536).startswith(b"HTTP/1.1 200 ")
        assert_ours(read_all(peer), 503, "outcome_unknown")


def test_a_socket_file_whose_path_is_too_long_is_left_out(replica: Replica) -> None:
    ingress = Ingress("bi-" + "x" * 74)  # with the names in it, of 95 and of 99 bytes
    try:
        ingress.run({"broker": ("/", [replica])})
        ingress.until_up(1)
        assert len(str(ingress.directory / haproxy.socket_file(replica.port))) > 97
        assert get(ingress.port, "/x")[2]["way"] == "AF_INET"
    finally:
        ingress.end()


def test_requests_are_answered_while_a_new_manager_takes_the_place_of_one_that_died(
    another: Ingress, replica: Replica
) -> None:
    """The process of the one that died serves on, and ends once another can serve."""
    applications = {"broker": ("/", [replica])}
    another.run(applications)
    another.until_up(1)
    left_behind = another.processes[-1]
    another.run({}, knows=False)
    assert {get(another.port, "/x")[0] for _ in range(40)} == {200}
    another.run(applications)
    left_behind.wait(30)
    another.until_up(1)
    assert {get(another.port, "/x")[0] for _ in range(40)} == {200}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of somebody else")
def test_a_neighbour_who_looks_like_the_ingress_keeps_no_door_shut_and_is_not_ended(another: Ingress) -> None:
    """Everybody may call a process as they like, and name our files."""
    program = haproxy.find_haproxy()
    assert program is not None
    words = [str(program), "-c", "sleep 60; true", "-f", str(another.config)]
    with subprocess.Popen(words, executable="/bin/sh", user=64_999) as neighbour:
        try:
            another.run({}, knows=False)
            assert_ours(call(another.port, GET + b"Connection: close\r\n\r\n"), 503, "unavailable")
            another.run({"broker": ("/", [])})
            assert neighbour.poll() is None
        finally:
            neighbour.kill()


def test_replicas_of_other_nodes_alone_are_watched_for_the_loss_of_their_node(another: Ingress) -> None:
    near, far = Replica("near"), Replica("far", "127.0.0.3")
    another.run({"broker": ("/", [near, far])})
    another.until_up(2)
    servers = [line.split() for line in another.config.read_text().splitlines() if "server SERVE" in line]
    watched = {line[2].partition(":")[0] for line in servers if "tcp-ut" in line}
    looked_at = {line[2].partition(":")[0] for line in servers if "inter" in line}
    assert watched == looked_at == {"127.0.0.3"}
    assert "srvtcpka" in another.config.read_text()
    another.run({"broker": ("/", [near])})
    assert "srvtcpka" not in another.config.read_text(), "all is on one machine"
    near.end()
    far.end()


def test_nothing_else_listens(ingress: Ingress) -> None:
    assert ingress.listens() == {("127.0.0.1", ingress.port), ("127.0.0.1", ingress.ops_port)}


def test_files_with_the_key_are_ours_alone(ingress: Ingress) -> None:
    for path in (ingress.directory, ingress.config, ingress.directory / "admin"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_an_upgrade_is_a_request_like_others(ingress: Ingress) -> None:
    key = "dGhlIHNhbXBsZSBub25jZQ=="
    asked = "Connection: Upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    request = f"GET /x HTTP/1.1\r\nHost: localhost\r\n{asked}Sec-WebSocket-Key: {key}\r\n\r\n"
    status, _, body = parse(call(ingress.port, request.encode()))
    assert status == 200
    assert "upgrade" not in body["headers"]


def test_four_thousand_half_sent_heads_keep_nobody_out_and_are_ended(ingress: Ingress) -> None:
    need_files(10_000)
    with ExitStack() as stack:
        held = [
            stack.enter_context(socket.create_connection(("127.0.0.1", ingress.port), 20, ("127.0.0.4", 0)))
            for _ in range(4_100)
        ]
        for peer in held:
            peer.sendall(GET)
        began_s = time.monotonic()
        for source in ("127.0.0.1", "127.0.0.4"):
            assert get(ingress.port, "/x", source)[0] == 200
        assert [peer for peer in held if read_all(peer) != b""] == []
        assert 5 < time.monotonic() - began_s < 60
        assert get(ingress.port, "/x")[0] == 200


def test_there_is_room_for_ten_thousand_kept_connections(ingress: Ingress) -> None:
    need_files(25_000)
    asyncio.run(keep_many(ingress.port, 10_000))
    assert get(ingress.port, "/x")[0] == 200


async def keep_many(port: int, count: int) -> None:
    """Each of so many connections has a reply, and a second one when all are open.

    They come from ten networks, because one alone gets half of what there is.
    """
    connections = []
    for begin in range(0, count, 200):
        opened = await asyncio.gather(
            *(
                asyncio.open_connection("127.0.0.1", port, local_addr=(f"127.0.{at % 10}.2", 0))
                for at in range(begin, begin + 200)
            )
        )
        connections += opened
        await asyncio.gather(*(ask(*each) for each in opened))
    for begin in range(0, count, 2_000):
        await asyncio.gather(*(ask(*each) for each in connections[begin : begin + 2_000 : 20]))
    for _, writer in connections:
        writer.close()


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One request of an operation that the frontend itself refuses: it costs no replica's thread."""
    writer.write(b"TRACE / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
    assert head.startswith(b"HTTP/1.1 405 ")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    await reader.readexactly(length)


@pytest.mark.parametrize("naming_door", ["", NAMING_DOOR])
def test_connections_of_one_address_are_limited_and_those_of_a_front_door_are_not(naming_door: str) -> None:
    limited = Ingress(HTTP_CONNECTIONS_PER_ADDRESS="20", PROXY_PROTOCOL=naming_door)
    try:
        limited.run({})
        with ExitStack() as stack:
            for source, expected in (("127.0.0.5", 20), ("127.0.0.6", 20), (FRONT_DOOR, 50)):
                answered = 0
                for _ in range(50):
                    answered += is_served(limited.port, source, stack)
                assert answered == expected, source
            # Callers that a front door names are counted as if they came themselves.
            for header, expected in (("127.0.0.5", 0), ("192.0.2.7", 20)) if naming_door else ():
                named = proxy_header.binary(header)
                answered = sum(is_served(limited.port, NAMING_DOOR, stack, named) for _ in range(30))
                assert answered == expected, header
            # The door for operators takes from the same whole.
            assert sum(is_served(limited.ops_port, "127.0.0.7", stack) for _ in range(50)) == 20
            assert is_served(limited.port, "127.0.0.7", stack)
    finally:
        limited.end()


def test_networks_that_take_all_they_can_get_leave_room_for_the_next_one() -> None:
    connections = 300
    scarce = Ingress(HTTP_CONNECTIONS=str(connections))
    try:
        scarce.run({})
        with ExitStack() as stack:
            held: list[int] = []
            for network in range(1, 13):  # one after the other, each from many addresses
                sources = [f"127.0.{network}.{1 + at}" for at in range(150)]
                held.append(sum(is_served(scarce.port, source, stack) for source in sources))
                assert connections - sum(held) >= connections // (network + 1), held
            assert abs(held[0] - 0.38 * connections) < 3, held
            assert is_served(scarce.port, "127.0.99.1", stack)
            assert is_served(scarce.ops_port, "127.0.1.1", stack)
    finally:
        scarce.end()


def is_served(port: int, source: str, stack: ExitStack, header: bytes = b"") -> bool:
    """Whether one more connection, which stays open, is served."""
    try:
        peer = stack.enter_context(socket.create_connection(("127.0.0.1", port), 20, (source, 0)))
        peer.sendall(header + GET + b"\r\n")
        return bool(peer.recv(65_536))
    except OSError:
        return False


def test_bodies_that_are_slow_to_come_reach_no_replica(ingress: Ingress, replica: Replica) -> None:
    seen = len(replica.seen)
    with ExitStack() as stack:
        held = [
            stack.enter_context(socket.create_connection(("127.0.0.1", ingress.port), 60)) for _ in range(100)
        ]
        for peer in held:
            peer.sendall(POST + b"Content-Length: 1000\r\n\r\nhalf")
        assert get(ingress.port, "/x", method="POST")[0] == 200
        assert len(replica.seen) == seen + 1
        for peer in held:
            assert_ours(read_all(peer), 400, "invalid_request")
    assert len(replica.seen) == seen + 1


def test_long_bodies_of_one_address_are_limited(ingress: Ingress) -> None:
    long = POST + b"Content-Length: 500000\r\n\r\n" + b"x" * 30_000
    with ExitStack() as stack:
        for _ in range(3):  # HTTP_LONG_BODIES_PER_ADDRESS
            peer = socket.create_connection(("127.0.0.1", ingress.port), 20, ("127.0.0.7", 0))
            stack.enter_context(peer).sendall(long)
        time.sleep(0.3)
        refused = call(ingress.port, long, "127.0.0.7")
        assert_ours(refused, 429, "slow_down")
        for source in ("127.0.0.8", FRONT_DOOR):
            with socket.create_connection(("127.0.0.1", ingress.port), 20, (source, 0)) as peer:
                peer.sendall(POST + b"Content-Length: 20000\r\nConnection: close\r\n\r\n" + b"x" * 20_000)
                assert parse(read_all(peer))[0] == 200


def test_while_there_is_no_application_or_no_replica_nothing_is_done(another: Ingress) -> None:
    replica = Replica("short")
    another.run({})
    assert_ours(call(another.port, POST + b"Connection: close\r\n\r\n"), 503, "unavailable")
    another.run({"broker": ("/", [replica])})
    another.until_up(1)
    replica.end()
    for _ in range(5):
        assert_ours(call(another.port, POST + b"Connection: close\r\n\r\n"), 503, "unavailable")
    another.run({})
    assert_ours(call(another.port, GET + b"Connection: close\r\n\r\n"), 503, "unavailable")


def test_replicas_come_and_go_while_requests_run(another: Ingress) -> None:
    first, second = Replica("first"), Replica("second")
    another.run({"broker": ("/", [first])})
    another.until_up(1)
    stop = threading.Event()
    seen: list[tuple[int, str]] = []

    def request_on() -> None:
        while not stop.is_set():
            status, _, body = get(another.port, "/x")
            seen.append((status, body.get("by", body.get("error"))))

    running = threading.Thread(target=request_on)
    running.start()
    try:
        another.run({"broker": ("/", [first, second])})
        another.until_up(2)
        another.run({"broker": ("/", [second])})
        first.end()
        begun = len(seen)
        await_name(seen[begun:] or seen, "second")
        assert another.listens() == {("127.0.0.1", another.port), ("127.0.0.1", another.ops_port)}
    finally:
        stop.set()
        running.join()
    second.end()
    assert {status for status, _ in seen} == {200}


def test_a_single_replica_has_a_spare_that_is_not_used_before(another: Ingress) -> None:
    first, second = Replica("first"), Replica("second")
    another.run({"broker": ("/", [first, second])})
    another.until_up(2)
    answered = {get(another.port, "/x")[2]["by"] for _ in range(10)}
    assert len(answered) == 1
    used, spare = (first, second) if answered == {"first"} else (second, first)
    used.die()
    for _ in range(2):  # one may be lost over a kept connection, one refused over a new one
        get(another.port, "/x")
    replies = [get(another.port, "/x") for _ in range(10)]
    assert {(status, body.get("by")) for status, _, body in replies} == {(200, spare.name)}
    spare.end()


def test_a_spare_gets_no_body_and_does_not_become_the_first_when_named_so(
    another: Ingress,
) -> None:
    replicas = [Replica("one"), Replica("two")]
    answered = set()
    for named in (replicas, replicas[::-1], replicas):
        another.run({"broker": ("/", named)})
        another.until_up(2)
        for rest in (SHORT, LONG, CHUNKS):
            request = POST + b"Connection: close\r\n" + rest
            answered |= {parse(call(another.port, request))[2]["by"] for _ in range(4)}
    assert len(answered) == 1
    for replica in replicas:
        replica.end()


def await_name(seen: list[tuple[int, str]], name: str) -> None:
    """Until a replica of that name has answered."""
    deadline_s = time.monotonic() + 20
    while all(by != name for _, by in list(seen)):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_the_longest_prefix_gets_a_request_and_applications_of_others_get_no_key(another: Ingress) -> None:
    replicas = {name: Replica(name) for name in ("broker", "broker-images", "other")}
    prefixes = {"broker": "/", "broker-images": "/api/v2/imgproxy", "other": "/other"}
    another.run({name: (prefixes[name], [each]) for name, each in replicas.items()})
    another.until_up(3)
    expected = {
        "/": "broker",
        "/api/v2/imgproxy": "broker-images",
        "/api/v2/imgproxy/a/b": "broker-images",
        "/api/v2/imgproxy2": "broker",
        "/api/v1/version": "broker",
        "/other/x": "other",
    }
    assert {path: get(another.port, path)[2]["by"] for path in expected} == expected
    for path in ("/", "/api/v2/imgproxy"):
        assert "x-broker-ingress" in get(another.port, path)[2]["headers"]
    assert "x-broker-ingress" not in get(another.port, "/other")[2]["headers"]
    for replica in replicas.values():
        replica.end()


CHANGES = {
    "a server in another notation": ("server SERVE_", "server-v2 x@SERVE_"),
    "a server with a word that we do not know": (" check observe", " check send-proxy observe"),
    "no path": ("acl is_http-broker path /", "acl is_http-broker url /"),
    "no check": ("option httpchk GET", "option tcp-check #"),
    "no socket": ("stats socket", "stats pipe"),
}


@pytest.mark.parametrize(("theirs", "other"), CHANGES.values(), ids=CHANGES)
def test_a_ray_that_writes_otherwise_stops_the_start_with_a_clear_line(
    another: Ingress, replica: Replica, theirs: str, other: str
) -> None:
    another.write_as_ray({"broker": ("/", [replica])})
    text = another.config.read_text()
    assert theirs in text
    another.config.write_text(text.replace(theirs, other))
    process = another.start(["-db", "-f", str(another.config), "-dR"])
    assert process.wait(30) == 1
    assert another.said().startswith("the ingress cannot be started: Ray Serve")
    assert another.said().count("\n") == 1
    fault = another.directory / "haproxy.cfg.fault"
    assert another.said() == f"the ingress cannot be started: {fault.read_text()}\n"


def test_a_door_that_a_later_ray_opens_stays_shut(another: Ingress, replica: Replica) -> None:
    """Of Ray's frontends and pages nothing is taken over, so what is new among them is nothing either."""
    write = another.write_as_ray

    def with_more(applications: object) -> None:
        write(applications)  # type: ignore[arg-type]
        with another.config.open("a") as file:
            file.write("frontend new\n    bind 127.0.0.1:1\n    default_backend http-broker\n")

    another.write_as_ray = with_more  # type: ignore[method-assign]
    another.run({"broker": ("/", [replica])})
    assert another.listens() == {("127.0.0.1", another.port), ("127.0.0.1", another.ops_port)}


def test_a_directory_that_others_may_write_stops_the_start(another: Ingress, replica: Replica) -> None:
    another.write_as_ray({"broker": ("/", [replica])})
    another.directory.chmod(0o777)
    process = another.start(["-db", "-f", str(another.config), "-dR"])
    assert process.wait(30) == 1
    assert another.said().endswith(" can be written by others\n")


def test_a_reason_is_not_written_where_others_may_write(another: Ingress, replica: Replica) -> None:
    """They could have put a link there, and have the product's user write through it."""
    another.write_as_ray({"broker": ("/", [replica])})
    target = another.directory.parent / f"{another.directory.name}.victim"
    target.write_text("theirs")
    try:
        another.config.with_name("haproxy.cfg.fault").symlink_to(target)
        another.directory.chmod(0o777)
        assert another.start(["-db", "-f", str(another.config), "-dR"]).wait(30) == 1
        assert target.read_text() == "theirs"
        another.directory.chmod(0o700)
        another.config.write_text("not Ray's")
        assert another.start(["-db", "-f", str(another.config), "-dR"]).wait(30) == 1
        assert target.read_text() == "theirs"
    finally:
        target.unlink()
    fault = another.config.with_name("haproxy.cfg.fault")
    assert not fault.is_symlink()
    assert "stats socket" in fault.read_text()
    assert fault.stat().st_mode & 0o777 == 0o600


def test_a_directory_that_ray_has_made_is_closed(
    another: Ingress, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    another.write_as_ray({"broker": ("/", [replica])})
    made = another.directory / "node"
    made.mkdir(mode=0o755)
    for name in ("500.http", "admin.1.1.stderr.log", "haproxy.cfg.lock", "ingress_request_router.lua"):
        (made / name).touch()
    path = another.config.rename(made / another.config.name)
    monkeypatch.setenv("BROKER_INGRESS_KEY", KEY)
    ingress_start.exchange(path)
    assert made.stat().st_mode & 0o777 == 0o700
    assert "frontend public from ours" in path.read_text()


def test_a_directory_for_other_purposes_is_refused_and_left_as_it_is(
    another: Ingress, replica: Replica
) -> None:
    another.write_as_ray({"broker": ("/", [replica])})
    (another.directory / "theirs").touch()
    another.directory.chmod(0o755)
    assert another.start(["-db", "-f", str(another.config), "-dR"]).wait(30) == 1
    assert another.said().endswith(" contains other files and other users can open it\n")
    assert another.directory.stat().st_mode & 0o777 == 0o755


def need_files(count: int) -> None:
    """Let this process and HAProxy have so many open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))
