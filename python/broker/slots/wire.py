"""Calls over a TCP connection between two processes of one instance: what goes over it, and who may speak.

Both ends prove first that they know the listener's secret, which it tells only through Ray, so nothing that a
stranger sends is ever unpickled::

    caller                            listener
    nonce, 32 bytes          ───►
                             ◄───     nonce, HMAC(secret, "listener" + both nonces)
    HMAC(secret, "caller" + both)  ─►

After that each side sends frames: a length of four bytes, big-endian, and so many bytes of pickle. An empty
frame asks whether the other side lives; the listener answers it with one. The connection is not encrypted, as
Ray's own are not: a cluster's nodes share a network that they trust.
"""

import asyncio
import hashlib
import hmac
import pickle
import secrets
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, cast

NONCE_BYTES = 32
SECRET_BYTES = 32
_PROOF_BYTES = hashlib.sha256().digest_size
_LENGTH = struct.Struct(">I")
_MAX_FRAME_BYTES = 256 << 20
EMPTY_FRAME = _LENGTH.pack(0)


class Address(NamedTuple):
    """Where an actor listens, and the secret that lets a caller in."""

    host: str
    port: int
    secret: bytes

    def __repr__(self) -> str:
        return f"Address({self.host}:{self.port})"


class WireError(Exception):
    """The other side does not keep to this, or is a stranger."""


def pack(value: object) -> bytes:
    """The frame of a value."""
    body = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


class Wire(asyncio.Protocol, ABC):
    """One end of a connection: the handshake, and frames after it.

    What a frame holds is given to `_take`; None stands for an empty one. `_open` is called when the other
    side has proved itself, `_end` once when the connection is over, whether it was open or not.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._received = bytearray()
        self._advance: Callable[[], bool] = self._greet
        self.transport: asyncio.Transport

    # -- what the ends add

    @abstractmethod
    def _greet(self) -> bool:
        """Take a step of the handshake from what was received; false when more must come first."""

    @abstractmethod
    def _take(self, value: Any) -> None:
        """A frame has come."""

    @abstractmethod
    def _open(self) -> None:
        """The other side is one of ours."""

    @abstractmethod
    def _end(self) -> None:
        """The connection is over."""

    # -- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._received += data
        try:
            while self._advance():
                pass
        except Exception as error:
            # Whatever it is, what follows cannot be read.
            self.transport.abort()
            if not isinstance(error, WireError):
                raise

    def connection_lost(self, _error: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._end()

    # -- what both ends do alike

    def _cut(self, count: int) -> bytes | None:
        """The next `count` bytes, if they are there."""
        if len(self._received) < count:
            return None
        head = bytes(self._received[:count])
        del self._received[:count]
        return head

    def _proof(self, role: bytes, callers_nonce: bytes, listeners_nonce: bytes) -> bytes:
        return hmac.digest(self._secret, role + callers_nonce + listeners_nonce, "sha256")

    def _accept(self) -> None:
        self._advance = self._read_frame
        self._open()

    def _read_frame(self) -> bool:
        received = self._received
        if len(received) < _LENGTH.size:
            return False
        (length,) = _LENGTH.unpack_from(received)
        if length > _MAX_FRAME_BYTES:
            raise WireError(f"a frame of {length} bytes")
        end = _LENGTH.size + length
        if len(received) < end:
            return False
        if not length:
            del received[:end]
            self._take(None)
            return True
        with memoryview(received) as view:
            value = pickle.loads(view[_LENGTH.size : end])  # noqa: S301  # from one of ours
        del received[:end]
        self._take(value)
        return True


class CallerWire(Wire):
    """The caller's end."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self.transport.write(self._nonce)

    def _greet(self) -> bool:
        answer = self._cut(NONCE_BYTES + _PROOF_BYTES)
        if answer is None:
            return False
        nonces = self._nonce, answer[:NONCE_BYTES]
        if not hmac.compare_digest(answer[NONCE_BYTES:], self._proof(b"listener", *nonces)):
            raise WireError("not the listener")
        self.transport.write(self._proof(b"caller", *nonces))
        self._accept()
        return True


class ListenerWire(Wire):
    """The listener's end."""

    def _greet(self) -> bool:
        callers_nonce = self._cut(NONCE_BYTES)
        if callers_nonce is None:
            return False
        nonces = callers_nonce, self._nonce
        self.transport.write(self._nonce + self._proof(b"listener", *nonces))
        expected = self._proof(b"caller", *nonces)

        def check() -> bool:
            proof = self._cut(_PROOF_BYTES)
            if proof is None:
                return False
            if not hmac.compare_digest(proof, expected):
                raise WireError("not a caller of ours")
            self._accept()
            return True

        self._advance = check
        return True
