"""Requests that no client library would send, to the HTTP port of an instance, byte by byte."""

import socket
import time

import httpx

_WAIT_S = 60.0
_TAIL = b"\r\nHost: localhost\r\n"
_GET = b"GET /api/v1/version HTTP/1.1" + _TAIL

HOSTILE = {
    "header of 10 MB": _GET + b"X-A: " + b"a" * 10_000_000 + b"\r\n\r\n",
    "token of 1 MB": _GET + b"Authorization: Bearer " + b"a" * 1_000_000 + b"\r\n\r\n",
    "20,000 headers": _GET + b"".join(b"X-%d: a\r\n" % n for n in range(20_000)) + b"\r\n",
    "request line of 2 MB": b"GET /api/v1/version?" + b"a" * 2_000_000 + b" HTTP/1.1" + _TAIL + b"\r\n",
    "no HTTP at all": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 50 + b"\r\n\r\n",
    "unknown version": b"GET /api/v1/version HTTP/9.9" + _TAIL + b"\r\n",
    "space in the target": b"GET /api/v1/ver sion HTTP/1.1" + _TAIL + b"\r\n",
    "raw bytes in the target": b"GET /api/v1/\xff\xfe\x00 HTTP/1.1" + _TAIL + b"\r\n",
    "overlong UTF-8 in the target": b"GET /api/v1/programs/%c0%ae%c0%ae HTTP/1.1" + _TAIL + b"\r\n",
    "dots in the target": b"GET /api/v1/../../healthz/%2e%2e/x HTTP/1.1" + _TAIL + b"\r\n",
    "control character in a header": _GET + b"X-A: a\x00b\r\n\r\n",
    "folded header": _GET + b"X-A: a\r\n b\r\nContent-Length: 1\r\n 0\r\n\r\n",
    "space before the colon": _GET + b"Content-Length : 5\r\n\r\n",
    "two lengths": _GET + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    "negative length": _GET + b"Content-Length: -5\r\n\r\n",
    "length and chunks": b"POST /api/v1/servertime HTTP/1.1"
    + _TAIL
    + b"Content-Type: application/json\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunk of no size": b"POST /api/v1/servertime HTTP/1.1"
    + _TAIL
    + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "unknown coding": b"POST /api/v1/servertime HTTP/1.1" + _TAIL + b"Transfer-Encoding: gzip\r\n\r\n",
    "no host": b"GET /api/v1/version HTTP/1.1\r\n\r\n",
    "two hosts": _GET + b"Host: other.localhost\r\n\r\n",
    "method in lower case": b"get /api/v1/version HTTP/1.1" + _TAIL + b"\r\n",
    "unknown method": b"BREW /api/v1/version HTTP/1.1" + _TAIL + b"\r\n",
    "TRACE": b"TRACE /api/v1/version HTTP/1.1" + _TAIL + b"\r\n",
    "CONNECT": b"CONNECT internal:22 HTTP/1.1" + _TAIL + b"\r\n",
}

# What a server may take (RFC 9112, sections 2.3 and 6.3), for the one request that it is.
HARMLESS = {"unknown version", "length and chunks"}


def assert_refused(url: str) -> None:
    """Every hostile request is answered by 4xx, or its connection ends, and others are served as before."""
    for name, request in HOSTILE.items():
        status = _status(httpx.URL(url).port or 80, request)
        assert status == 0 or 400 <= status < 500 or (status == 200 and name in HARMLESS), (name, status)
        reply = httpx.get(f"{url}/api/v1/version", timeout=_WAIT_S)
        assert reply.status_code == 200, (name, reply.text)


def _status(port: int, request: bytes) -> int:
    """The status that answers a request; 0 when the connection ends, or stays silent, without one."""
    told = b""
    with socket.create_connection(("127.0.0.1", port), timeout=_WAIT_S) as peer:
        try:
            peer.sendall(request)
            peer.shutdown(socket.SHUT_WR)  # nothing more will come
        except OSError:  # it hung up in the middle; what it said before is there
            pass
        deadline_s = time.monotonic() + _WAIT_S
        try:
            while b"\r\n" not in told and time.monotonic() < deadline_s and (part := peer.recv(65_536)):
                told += part
        except OSError:
            return 0
    line = told.split(b"\r\n")[0].split(b" ")
    return int(line[1]) if len(line) > 1 and line[1].isdigit() else 0
