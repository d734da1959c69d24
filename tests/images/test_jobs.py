"""How the bytes of a result come from a decoder, which is not trusted."""

import socket
import threading
from collections.abc import Iterator

import pytest

from broker.images.jobs import receive_result, send_result


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


Pair = tuple[socket.socket, socket.socket]


@pytest.mark.parametrize("size", [0, 1, 3_000_000])  # the last one is more than a socket holds
def test_all_bytes_arrive_and_no_more(pair: Pair, size: int) -> None:
    ours, theirs = pair
    body = bytes(size)
    sending = threading.Thread(target=lambda: [send_result(theirs, each) for each in (body, b"next")])
    sending.start()
    assert receive_result(ours, size) == body
    assert receive_result(ours, 4) == b"next"
    sending.join()


def test_more_than_is_allowed_is_not_read(pair: Pair) -> None:
    ours, theirs = pair
    send_result(theirs, b"body")
    with pytest.raises(OSError, match="too long"):
        receive_result(ours, 3)


@pytest.mark.parametrize("sent", [b"", b"\0\0\0", b"\0\0\0\0\0\0\0\4bo"])
def test_an_end_that_closes_half_way_is_noticed(pair: Pair, sent: bytes) -> None:
    ours, theirs = pair
    theirs.sendall(sent)
    theirs.close()
    with pytest.raises(EOFError):
        receive_result(ours, 4)
