"""So many bytes of source pictures in this process at a time."""

import threading

from broker.errors import Unavailable


class MemoryBudget:
    """Bytes that are counted as they come, and given back when nobody holds them. Safe for any threads."""

    def __init__(self, max_bytes: int) -> None:
        self._free_bytes = max_bytes
        self._lock = threading.Lock()

    @property
    def free_bytes(self) -> int:
        """What is left."""
        return self._free_bytes

    def take(self, size_bytes: int) -> None:
        """Count bytes that are about to be held. Raises Unavailable where too many are."""
        with self._lock:
            if size_bytes > self._free_bytes:
                raise Unavailable("too many pictures are being processed", retry_after_s=1)
            self._free_bytes -= size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Bytes that `take` counted are held no more."""
        with self._lock:
            self._free_bytes += size_bytes
