"""The only source of identifiers and of randomness that others can see."""

import hashlib
import os
import secrets
import struct
import threading

from broker.clock import Clock

_COUNTER_BITS = 12  # rand_a of RFC 9562, section 5.7, used as a counter within a millisecond
_COUNTER = (1 << _COUNTER_BITS) - 1
_UUID7 = "%08x-%04x-7%03x-%04x-%012x"  # in four fifths of the time of f-strings
_RANDOM = 128  # numbers asked of the system at a time: one takes as long as all else of an identifier
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class IdSource:
    """Makes identifiers that sort by the time they were made. Safe to use from several threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last = 0
        self._random: list[int] = []
        # Two processes must not use the same ones. Windows has no fork, and no such function.
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._random.clear)

    def uuid7(self) -> str:
        """A new UUIDv7 (RFC 9562, section 5.7) in its 36-character form.

        Each is greater than the one before from the same source, also when the wall clock steps back.
        """
        with self._lock:
            if not self._random:
                self._random += struct.unpack(f"{_RANDOM}Q", os.urandom(8 * _RANDOM))
            random = self._random.pop()
            stamp = self._clock.now_ms() << _COUNTER_BITS
            if stamp <= self._last:
                stamp = self._last + 1
            self._last = stamp
        time, counter = stamp >> _COUNTER_BITS, stamp & _COUNTER
        return _UUID7 % (time >> 16, time & 0xFFFF, counter, random >> 50 | 0x8000, random & 0xFFFF_FFFF_FFFF)

    def uuid7_of(self, subject: str, scope: str) -> str:
        """The UUIDv7 that stands for `subject` within `scope`: always the same one, with the scope's time.

        Args:
            scope: a UUIDv7. Who does not know it cannot guess what this returns.
        """
        random = hashlib.blake2b(subject.encode(), key=scope.encode(), digest_size=10)
        digits = random.hexdigest()
        return f"{scope[:13]}-7{digits[:3]}-{int(digits[3], 16) & 3 | 8:x}{digits[4:7]}-{digits[7:19]}"

    def epoch(self) -> str:
        """A new name for one life of a program's history: 12 letters and digits, about 71 random bits."""
        return "".join(secrets.choice(_ALPHABET) for _ in range(12))

    def secret(self) -> str:
        """256 random bits as URL-safe text, for keys and one-time passwords."""
        return secrets.token_urlsafe(32)
