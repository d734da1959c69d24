"""What counts as a plain request: the one form in which the ingress hands on a GET, and nothing else."""

import pytest

from broker.rest.plain_heads import read_plain_head

HEAD = b"GET /a/b?c=d HTTP/1.1\r\nhost: x\r\nx-broker-ingress: key public 127.0.0.1\r\naccept: */*\r\n\r\n"


def test_a_plain_request_is_its_target_and_its_headers() -> None:
    head = read_plain_head(HEAD)
    assert head is not None
    assert head.target == b"/a/b?c=d"
    assert head.headers == {
        b"host": b"x",
        b"x-broker-ingress": b"key public 127.0.0.1",
        b"accept": b"*/*",
    }


def test_a_value_may_have_colons_spaces_and_nothing() -> None:
    head = read_plain_head(HEAD.replace(b"*/*", b"a: b: c").replace(b"host: x", b"host: "))
    assert head is not None
    assert (head.headers[b"accept"], head.headers[b"host"]) == (b"a: b: c", b"")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GET /",
        b"\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",  # it names nobody, so it cannot be of the ingress
        HEAD[:-2],
        HEAD[:-4],
        HEAD + b"x",
        HEAD + HEAD,
        HEAD + b"\r\n",
        b"\r\n" + HEAD,
        HEAD.replace(b"GET", b"HEAD"),
        HEAD.replace(b"GET", b"get"),
        HEAD.replace(b"GET /", b"GET http://x/"),
        HEAD.replace(b"GET /", b"GET  /"),
        HEAD.replace(b"HTTP/1.1", b"HTTP/1.0"),
        HEAD.replace(b"HTTP/1.1", b"HTTP/1.1 "),
        HEAD.replace(b"host: x", b"host:x"),
        HEAD.replace(b"host: x", b"Host: x"),
        HEAD.replace(b"host: x", b"host: x\r\nhost: x"),
        HEAD.replace(b"host: x", b"host: x\r\n folded"),
        HEAD.replace(b"host: x", b"host: x\n\r\n"),
        HEAD.replace(b"accept: */*", b"content-length: 5"),
        HEAD.replace(b"accept: */*", b"Content-Length: 5"),
        HEAD.replace(b"accept: */*", b"transfer-encoding: chunked"),
        HEAD.replace(b"accept: */*", b"connection: close"),
        HEAD.replace(b"accept: */*", b"expect: 100-continue"),
        HEAD.replace(b"accept: */*", b"upgrade: websocket"),
        HEAD.replace(b"accept: */*", b'if-none-match: "x"'),
        HEAD.replace(b"*/*", b"x" * 8_192),
    ],
)
def test_anything_else_is_for_the_parser(data: bytes) -> None:
    assert read_plain_head(data) is None
