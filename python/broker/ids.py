"""The only source of identifiers and of randomness that others can see."""

import hashlib
import os
import secrets
import threading

from broker.clock import Clock

_COUNTER_BITS = 12  # rand_a of RFC 9562, section 5.7, used as a counter within a millisecond
_COUNTER = (1 << _COUNTER_BITS) - 1
_ENDS = 128  # made at a time: asking the system for one takes as long as all else of an identifier
_VARIANTS = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))  # a random digit → one that begins with 10
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class IdSource:
    """Makes identifiers that sort by the time they were made. Safe to use from several threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # The millisecond of the last identifier, its number in that, and the text in front of the number.
        self._ms = -1
        self._counter = 0
        self._start = ""
        self._ends: list[str] = []
        # Two processes must not use the same ones. Windows has no fork, and no such function.
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._ends.clear)

    def uuid7(self) -> str:
        """A new UUIDv7 (RFC 9562, section 5.7) in its 36-character form.

        Each is greater than the one before from the same source, also when the wall clock steps back.
        """
        with self._lock:
            if not self._ends:
                self._ends += _random_ends(_ENDS)
            end = self._ends.pop()
            now_ms = self._clock.now_ms()
            if now_ms > self._ms:
                self._begin(now_ms)
            elif self._counter == _COUNTER:
                self._begin(self._ms + 1)
            else:
                self._counter += 1
            return f"{self._start}{self._counter:03x}{end}"

    def _begin(self, ms: int) -> None:
        """Number the identifiers of another millisecond."""
        self._ms = ms
        self._counter = 0
        self._start = f"{ms >> 16:08x}-{ms & 0xFFFF:04x}-7"

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


def _random_ends(number: int) -> list[str]:
    """What stands behind the counter of so many identifiers: the variant and 62 random bits."""
    digits = os.urandom(8 * number).hex()
    return [
        f"-{_VARIANTS[digits[at]]}{digits[at + 1 : at + 4]}-{digits[at + 4 : at + 16]}"
        for at in range(0, len(digits), 16)
    ]
