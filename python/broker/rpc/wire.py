"""A link between two processes of one instance: framing, authentication and encryption.

Both ends know the listener's secret, which it tells only through Ray. They begin with a key for one use each,
and derive a key for each direction from both keys and the secret::

    caller                            listener
    greeting, 40 bytes       ───►
                             ◄───     greeting, empty record
    empty record             ───►

A greeting is `MAGIC`, the version of the wire (two bytes) and an X25519 key (RFC 7748). The keys of the
directions are HKDF-SHA256 (RFC 5869) of what the two keys agree on, salted with the secret, over both
greetings. Only who knows the secret can seal a record, so each side's first one is its proof. Whoever listens
in learns nothing, even when the secret is learnt later; whoever knows the secret can stand between two
processes.

Then each side sends messages in records: four bytes, big-endian, of which 31 bits are the length of the text
and one, `_MORE`, says that the message goes on; then the text, sealed by AES-256-GCM (NIST SP 800-38D)
together with these four bytes. The nonce is the number of the record in its direction: a record that is
changed, left out, repeated or out of order does not open, and ends the connection. An empty record asks
whether the other side lives; the listener answers it with one.

Another version is refused: the listener answers with its own greeting and nothing else. An upgrade is going
on, and the process of one side is about to be exchanged.
"""

import asyncio
import hmac
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple, cast

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from broker.rpc.calls import CannotTravel

MAGIC = b"broker"
VERSION = 1
SECRET_BYTES = 32
_GREETING = struct.Struct(">6sH32s")
GREETING_BYTES = _GREETING.size
_HEAD = struct.Struct(">I")
_MORE = 1 << 31
_TAG_BYTES = 16
_KEY_BYTES = 32
PROOF_BYTES = _HEAD.size + _TAG_BYTES
# What is kept before it is known to come from the other side.
_RECORD_BYTES = 1 << 20
_MESSAGE_BYTES = 256 << 20
# 2^20 records are at most 2^36 blocks under one key; the bounds of SP 800-38D and RFC 8446, 5.5 are far.
_KEY_RECORDS = 1 << 20


class Address(NamedTuple):
    """Where an actor listens, and the secret that lets a caller in."""

    host: str
    port: int
    secret: bytes

    def __repr__(self) -> str:
        return f"Address({self.host}:{self.port})"


class WireError(Exception):
    """The other side does not keep to this, or is a stranger."""


class OtherVersion(WireError):
    """The other side speaks another version of the wire."""

    def __init__(self, version: int) -> None:
        super().__init__(
            f"the other side speaks version {version} of the link, this process version {VERSION}"
        )
        self.version = version


class _Seal:
    """One direction: its key, and the number of its next record."""

    def __init__(self, key: bytes) -> None:
        self._begin(key)

    def close(self, text: bytes | memoryview, head: bytes) -> bytes:
        """The text sealed."""
        return self._cipher.encrypt(self._nonce(), text, head)

    def open(self, sealed: memoryview, head: memoryview) -> bytes:
        """The text. Raises WireError when it is not the next record of the other side."""
        try:
            return self._cipher.decrypt(self._nonce(), sealed, head)
        except InvalidTag:
            raise WireError("not a record of the other side") from None

    def _begin(self, key: bytes) -> None:
        self._key = key
        self._cipher = AESGCM(key)
        self._count = 0

    def _nonce(self) -> bytes:
        if self._count == _KEY_RECORDS:
            self._begin(hmac.digest(self._key, b"next key", "sha256"))
        nonce = self._count.to_bytes(12, "big")
        self._count += 1
        return nonce


class Wire(asyncio.Protocol, ABC):
    """One end of a connection: the handshake, and messages after it.

    A message is given to `_take`, an empty one too. `_open` is called when the other side has proved itself,
    `_end` once when the connection is over, whether it was open or not; `fault` says why, where it is known.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._private = X25519PrivateKey.generate()
        self._greeting = _GREETING.pack(MAGIC, VERSION, self._private.public_key().public_bytes_raw())
        self._received = bytearray()
        self._record_limit = 0  # a stranger's is empty
        self._more = False
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._advance: Callable[[], bool] = self._greet
        self._out: _Seal
        self._in: _Seal
        self.transport: asyncio.Transport
        self.fault: WireError | None = None

    def send(self, message: bytes) -> None:
        """Send a message; an empty one asks whether the other side lives. Raises CannotTravel: too long."""
        if len(message) > _MESSAGE_BYTES:
            raise CannotTravel(f"a message of {len(message)} bytes")
        if len(message) <= _RECORD_BYTES:
            head = _HEAD.pack(len(message))
            self.transport.write(head + self._out.close(message, head))
            return
        with memoryview(message) as view:
            for start in range(0, len(view), _RECORD_BYTES):
                text = view[start : start + _RECORD_BYTES]
                head = _HEAD.pack(len(text) | (_MORE if start + len(text) < len(view) else 0))
                self.transport.writelines((head, self._out.close(text, head)))

    # -- what the ends add

    @abstractmethod
    def _greet(self) -> bool:
        """Take the other side's greeting from what was received; false when more must come first."""

    @abstractmethod
    def _prove(self) -> bool:
        """Take the other side's first record from what was received; false when more must come first."""

    @abstractmethod
    def _take(self, message: bytes) -> None:
        """A message has come."""

    @abstractmethod
    def _open(self) -> None:
        """The other side is one of ours."""

    @abstractmethod
    def _end(self) -> None:
        """The connection is over."""

    # -- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Process what has arrived, as far as it is complete."""
        self._received += data
        try:
            while self._advance():
                pass
        except OtherVersion as error:
            self.fault = error
            self.transport.close()  # after what was written: our own version
        except WireError as error:
            self.fault = error
            self.transport.abort()
        except BaseException:
            self.transport.abort()  # what follows cannot be read
            raise

    def connection_lost(self, _error: Exception | None) -> None:
        """Tell the subclass that the connection is over."""
        self._end()

    # -- what both ends do alike

    def _read_greeting(self) -> bytes | None:
        """The other side's greeting, when it is there."""
        received = self._received
        if not MAGIC.startswith(bytes(received[: len(MAGIC)])):
            raise WireError("not a greeting")
        if len(received) < GREETING_BYTES:
            return None
        greeting = bytes(received[:GREETING_BYTES])
        del received[:GREETING_BYTES]
        _, version, _ = _GREETING.unpack(greeting)
        if version != VERSION:
            raise OtherVersion(version)
        return greeting

    def _agree(self, callers: bytes, listeners: bytes, others: bytes) -> tuple[_Seal, _Seal]:
        """The directions from the caller and from the listener."""
        _, _, public = _GREETING.unpack(others)
        try:
            shared = self._private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:  # a point of small order
            raise WireError("not a key") from None
        keys = HKDF(SHA256(), 2 * _KEY_BYTES, self._secret, callers + listeners).derive(shared)
        return _Seal(keys[:_KEY_BYTES]), _Seal(keys[_KEY_BYTES:])

    def _read_proof(self) -> bool:
        """Whether the other side's first record has come, an empty one. Raises WireError for another."""
        text = self._read_record()
        if text is not None and self._more:
            raise WireError("not a proof")
        return text is not None

    def _accept(self) -> None:
        self._record_limit = _RECORD_BYTES
        self._advance = self._read_message
        self._open()

    def _read_message(self) -> bool:
        text = self._read_record()
        if text is None:
            return False
        if self._more and len(text) != _RECORD_BYTES:
            raise WireError("a message in pieces that are too small")
        if self._more or self._parts:
            self._parts.append(text)
            self._parts_bytes += len(text)
            if self._parts_bytes > _MESSAGE_BYTES:
                raise WireError("a message that is too long")
            if self._more:
                return True
            text = b"".join(self._parts)
            self._parts.clear()
            self._parts_bytes = 0
        self._take(text)
        return True

    def _read_record(self) -> bytes | None:
        """The text of the next record, when it is there; `_more` says whether its message goes on."""
        received = self._received
        if len(received) < _HEAD.size:
            return None
        (head,) = _HEAD.unpack_from(received)
        length = head & ~_MORE
        if length > self._record_limit:
            raise WireError(f"a record of {length} bytes")
        end = _HEAD.size + length + _TAG_BYTES
        if len(received) < end:
            return None
        with memoryview(received) as view, view[: _HEAD.size] as header, view[_HEAD.size : end] as sealed:
            text = self._in.open(sealed, header)
        del received[:end]
        self._more = bool(head & _MORE)
        return text


class CallerWire(Wire):
    """The caller's end."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport and send the greeting."""
        super().connection_made(transport)
        self.transport.write(self._greeting)

    def _greet(self) -> bool:
        greeting = self._read_greeting()
        if greeting is None:
            return False
        self._out, self._in = self._agree(self._greeting, greeting, greeting)
        self._advance = self._prove
        return True

    def _prove(self) -> bool:
        if not self._read_proof():
            return False
        self.send(b"")
        self._accept()
        return True


class ListenerWire(Wire):
    """The listener's end."""

    def _greet(self) -> bool:
        try:
            greeting = self._read_greeting()
        except OtherVersion:
            self.transport.write(self._greeting)
            raise
        if greeting is None:
            return False
        if self._received:
            raise WireError("a caller that does not wait for its reply")
        self._in, self._out = self._agree(greeting, self._greeting, greeting)
        self.transport.write(self._greeting)
        self.send(b"")
        self._advance = self._prove
        return True

    def _prove(self) -> bool:
        if not self._read_proof():
            return False
        self._accept()
        return True
