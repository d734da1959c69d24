import json

import pytest

from bench.servers import centrifugo, nats, nchan, redis, uvloop_frame
from bench.servers.command import Message, build_message


def split_post(request: bytes) -> tuple[bytes, bytes]:
    head, body = request.split(b"\r\n\r\n", 1)
    length = next(line for line in head.split(b"\r\n") if line.startswith(b"Content-Length: "))
    assert int(length.split()[1]) == len(body)
    return head, body


def test_redis_is_told_in_its_protocol() -> None:
    pieces = redis.encode(Message(7, 300, 5)).split(b"\r\n")
    assert pieces[:6] == [b"*3", b"$7", b"PUBLISH", b"$5", b"bench", b"$300"]
    assert json.loads(pieces[6])["params"]["seq"] == 7


def test_nats_is_told_in_its_protocol() -> None:
    line, payload, end = nats.encode(Message(7, 300, 5)).split(b"\r\n")
    assert line == b"PUB bench 300"
    assert json.loads(payload)["params"]["seq"] == 7
    assert end == b""


def test_nchan_gets_the_message_itself() -> None:
    head, body = split_post(nchan.encode(Message(7, 300, 5)))
    assert head.startswith(b"POST /publish HTTP/1.1\r\n")
    assert len(body) == 300


def test_centrifugos_viewers_get_as_many_bytes_as_the_others() -> None:
    _, body = split_post(centrifugo.encode(Message(7, 300, 5)))
    command = json.loads(body)
    assert command["channel"] == "bench"
    assert command["data"]["seq"] == 7
    data = body.removeprefix(b'{"channel":"bench","data":')[:-1]
    assert len(centrifugo.ENVELOPE % data) == 300


@pytest.mark.parametrize("size_bytes", [200, 300, 4000])
def test_a_prebuilt_frame_says_its_length(size_bytes: int) -> None:
    frame = uvloop_frame.build_frame(build_message(Message(1, size_bytes, 5)))
    assert frame[:2] == b"\x81\x7e"
    assert int.from_bytes(frame[2:4], "big") == size_bytes == len(frame) - 4
