"""Messages between a replica and a decoder, which is not trusted."""

import os
import socket
import struct
import threading
from collections.abc import Iterator

import msgspec
import pytest

from broker.images.body_files import BodyFile
from broker.images.job_messages import ReplyReader, receive_job, send_job, send_reply
from broker.images.jobs import DecodeLimits, Job, JobReply, Planned

Pair = tuple[socket.socket, socket.socket]
Said = tuple[Planned | JobReply, bytes]
JOB = Job("render", DecodeLimits(), number=7)
REPLY = JobReply(memory_bytes=5)


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def read(over: socket.socket, reader: ReplyReader, most: int = 1 << 20) -> Said:
    """The next reply, of which `most` bytes are read at a time."""
    while (said := reader.feed(over.recv(min(most, reader.wanted_bytes)))) is None:
        pass
    return said


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count


@pytest.mark.parametrize("size", [0, 1, 100_000, 3_000_000])
def test_a_job_comes_with_its_source(pair: Pair, size: int) -> None:
    ours, theirs = pair
    body = os.urandom(size)
    for number in range(2):
        before = descriptors()
        job = msgspec.structs.replace(JOB, number=number)
        assert send_job(ours, job, BodyFile.of_parts([body])) == b""
        received, source = receive_job(theirs)
        assert (received, bytes(source)) == (job, body)
        del source
        assert descriptors() == before


def test_what_a_socket_does_not_take_of_a_job_is_told(pair: Pair) -> None:
    ours, theirs = pair
    ours.setblocking(False)
    job = msgspec.structs.replace(JOB, unwanted=tuple(range(2**40, 2**40 + 100_000)))
    left = send_job(ours, job, BodyFile.of_parts([b"source"]))
    assert left
    ours.setblocking(True)
    sending = threading.Thread(target=ours.sendall, args=(left,))
    sending.start()
    received, source = receive_job(theirs)
    sending.join()
    assert (received, bytes(source)) == (job, b"source")


@pytest.mark.parametrize("sent", [b"", b"\0\0\0", struct.pack(">IQQ", 9, 0, 0) + b"job"])
def test_a_decoder_notices_that_its_parent_is_gone(pair: Pair, sent: bytes) -> None:
    ours, theirs = pair
    if sent:
        body = BodyFile.of_parts([b""])
        socket.send_fds(ours, [sent], [body.descriptor])
        del body
    ours.close()
    before = descriptors()
    with pytest.raises(EOFError):
        receive_job(theirs)
    assert descriptors() == before


@pytest.mark.parametrize("most", [1, 7, 1 << 20])
@pytest.mark.parametrize("size", [0, 1, 1_000])
def test_a_reply_is_put_together_of_any_parts(pair: Pair, size: int, most: int) -> None:
    ours, theirs = pair
    for said in ((Planned(5), b""), (REPLY, bytes(range(256)) * size)):
        sending = threading.Thread(target=send_reply, args=(theirs, *said))
        sending.start()
        assert read(ours, ReplyReader(), most) == said
        sending.join()


def test_a_result_larger_than_a_socket_holds_arrives(pair: Pair) -> None:
    ours, theirs = pair
    body = os.urandom(3_000_000)
    sending = threading.Thread(target=send_reply, args=(theirs, REPLY, body))
    sending.start()
    assert read(ours, ReplyReader()) == (REPLY, body)
    sending.join()


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (struct.pack(">IQ", 65_537, 0), OSError),
        (struct.pack(">IQ", 1, 1_001), OSError),
        (struct.pack(">IQ", 1, 2**63), OSError),
        (struct.pack(">IQ", 1, 0) + b"\xc1", msgspec.DecodeError),
        (struct.pack(">IQ", 0, 0), msgspec.DecodeError),
        (
            struct.pack(">IQ", len(msgspec.msgpack.encode(REPLY)), 0) + msgspec.msgpack.encode(REPLY) + b"x",
            OSError,
        ),
        (b"\0\0\0", EOFError),
        (
            struct.pack(">IQ", len(msgspec.msgpack.encode(REPLY)), 4) + msgspec.msgpack.encode(REPLY) + b"bo",
            EOFError,
        ),
    ],
)
def test_a_reply_that_may_not_be_is_refused(pair: Pair, sent: bytes, error: type[Exception]) -> None:
    ours, theirs = pair
    theirs.sendall(sent)
    theirs.close()
    with pytest.raises(error):
        read(ours, ReplyReader(max_result_bytes=1_000))
