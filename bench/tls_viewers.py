"""Viewers of `bench.tls`: `python -m bench.tls_viewers PORT VIEWERS [CERTIFICATE]`.

Says when all have subscribed; for a line of input, how many messages have come. One thread, which decrypts.
"""

import json
import selectors
import socket
import ssl
import sys

REQUEST = (
    b"GET /api/v1/ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
CALL = b'{"jsonrpc":"2.0","id":1,"method":"subscribe","params":{"programId":"bench"}}'
MESSAGE = b'"method":"event"'


def main(port: int, viewers: int, certificate: str | None) -> None:
    """Connect, and count until the input ends."""
    context = None if certificate is None else ssl.create_default_context(cafile=certificate)
    selector = selectors.DefaultSelector()
    selector.register(sys.stdin, selectors.EVENT_READ)
    for _ in range(viewers):
        selector.register(_join(port, context), selectors.EVENT_READ)
    print(json.dumps({"joined": viewers}), flush=True)
    messages = 0
    while True:
        for key, _ in selector.select():
            if key.fileobj is not sys.stdin:
                messages += _count(key.fileobj)  # type: ignore[arg-type]
            elif sys.stdin.readline():
                print(json.dumps({"messages": messages}), flush=True)
            else:
                return


def _join(port: int, context: ssl.SSLContext | None) -> socket.socket:
    """A connection that has subscribed."""
    peer = socket.create_connection(("127.0.0.1", port), 20)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if context is not None:
        peer = context.wrap_socket(peer, server_hostname="bench.test")
    peer.sendall(REQUEST)
    _read_until(peer, b"\r\n\r\n")
    peer.sendall(bytes([0x81, 0x80 | len(CALL)]) + bytes(4) + CALL)  # masked with zeroes
    _read_until(peer, b'"id":1')
    peer.setblocking(False)
    return peer


def _read_until(peer: socket.socket, marker: bytes) -> None:
    told = b""
    while marker not in told:
        part = peer.recv(65_536)
        if not part:
            raise SystemExit(f"closed after {told!r}")
        told += part


def _count(peer: socket.socket) -> int:
    """Messages in what has come; none is cut, since the gateway sends each in one record or one write."""
    messages = 0
    try:
        while part := peer.recv(65_536):
            messages += part.count(MESSAGE)
    except (BlockingIOError, ssl.SSLWantReadError):
        pass
    return messages


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None)
