"""How a job and its source come to a decoder process, and how its result comes back, over a Unix socket.

Each message is written by one call, so that its reader is woken once; as a rule it has read all of it with
the second call. A job is the lengths of what follows, the job in MessagePack and, beside its first byte
(SCM_RIGHTS, unix(7)), the open file of its source. A reply is two lengths, the reply in MessagePack, and the
bytes of the result. A decoder is not trusted: what it may say is bounded.
"""

import os
import socket
import struct

import msgspec

from broker.images.body_files import BodyFile, map_body, write_all
from broker.images.jobs import Job, JobReply, Planned

MAX_RESULT_BYTES = 256 << 20  # an animation of 200 megapixels in GIF stays below
LEAVE = b"+"
"""What a decoder waits for after `Planned`."""

_JOB = struct.Struct(">IQQ")  # lengths of the job, of what lies before the source in its file, of the source
_REPLY = struct.Struct(">IQ")  # lengths of the reply and of the result
_MAX_REPLY_BYTES = 64 << 10
_FIRST_BYTES, _NEXT_BYTES = 64 << 10, 256 << 10  # that are read at a time; a socket holds 208 KiB

_job_decoder = msgspec.msgpack.Decoder(Job)
_reply_decoder = msgspec.msgpack.Decoder(Planned | JobReply)


def send_job(over: socket.socket, job: Job, source: BodyFile) -> bytes:
    """Send a job; what the socket has not taken is returned, and is still to be sent. Raises OSError."""
    encoded = msgspec.msgpack.encode(job)
    message = _JOB.pack(len(encoded), source.offset, source.size_bytes) + encoded
    sent = socket.send_fds(over, [message], [source.descriptor])
    return message[sent:]


def receive_job(over: socket.socket) -> tuple[Job, memoryview]:
    """The next job and its source, which is mapped for as long as anything refers to it. Blocks.

    Raises:
        EOFError: the other end is closed.
        OSError, ValueError: the file cannot be mapped.
    """
    start, descriptors, _, _ = socket.recv_fds(over, _JOB.size, 1)
    if len(start) < _JOB.size or not descriptors:
        for descriptor in descriptors:
            os.close(descriptor)
        raise EOFError
    size, offset, source_bytes = _JOB.unpack(start)
    source = map_body(descriptors[0], offset, source_bytes)
    encoded = over.recv(size, socket.MSG_WAITALL)
    if len(encoded) < size:
        raise EOFError
    return _job_decoder.decode(encoded), source


def send_reply(over: socket.socket, reply: Planned | JobReply, result: bytes = b"") -> None:
    """Send a reply and the bytes of its result. Blocks. Raises OSError."""
    encoded = msgspec.msgpack.encode(reply)
    write_all(over.fileno(), [_REPLY.pack(len(encoded), len(result)), encoded, result])


class ReplyReader:
    """Puts one reply together of what has been read."""

    def __init__(self, max_result_bytes: int = MAX_RESULT_BYTES) -> None:
        self._max_result_bytes = max_result_bytes
        self._start = b""  # until the reply is there
        self._reply: Planned | JobReply | None = None
        self._parts: list[bytes] = []  # of the result
        self._missing = 0

    @property
    def wanted_bytes(self) -> int:
        """How many to read next, at most."""
        return _FIRST_BYTES if self._reply is None else min(self._missing, _NEXT_BYTES)

    def feed(self, part: bytes) -> tuple[Planned | JobReply, bytes] | None:
        """The reply and its result once all is there.

        Args:
            part: what has been read; nothing at the end.

        Raises:
            EOFError: the other end is closed.
            OSError: the reply or its result is too long, or something follows.
            msgspec.DecodeError: it is not a reply.
        """
        if not part:
            raise EOFError
        if self._reply is None:
            self._start += part
            part = self._read_start()
        if self._reply is None:
            return None
        self._parts.append(part)
        self._missing -= len(part)
        if self._missing < 0:
            raise OSError("something follows the result")
        return None if self._missing else (self._reply, b"".join(self._parts))

    def _read_start(self) -> bytes:
        """What has been read of the result, once the reply is there."""
        if len(self._start) < _REPLY.size:
            return b""
        reply_bytes, self._missing = _REPLY.unpack_from(self._start)
        if reply_bytes > _MAX_REPLY_BYTES or self._missing > self._max_result_bytes:
            raise OSError("the reply is too long")
        end = _REPLY.size + reply_bytes
        if len(self._start) >= end:
            self._reply = _reply_decoder.decode(self._start[_REPLY.size : end])
        return self._start[end:]
