"""How much room the disk of the data directory has, and what that means for the embedded PostgreSQL."""

import shutil
from pathlib import Path

from broker.errors import Unavailable
from broker.settings import Settings

FULL_BYTES = 64 << 20
"""Four segments of the write-ahead log (16 MiB each): with less, a burst of commits finds no room."""
LEAST_BYTES = 1 << 30
"""What PostgreSQL needs for its log (`max_wal_size`) and for the work of a busy hour."""
WARN_BYTES = 10 << 30


def find_room(directory: Path) -> int:
    """Bytes that are free for us where the directory is, or will be made. Blocks. Raises OSError."""
    path = directory.absolute()
    return shutil.disk_usage(next(p for p in (path, *path.parents) if p.exists())).free


def require_room(settings: Settings) -> None:
    """Raise Unavailable when the embedded PostgreSQL has a full disk. Blocks.

    The disk of another server cannot be seen, nor that of one on another node.
    """
    if settings.database_url:
        return
    try:
        free_bytes = shutil.disk_usage(settings.data_dir / "postgres" / "data").free
    except OSError:
        return
    if free_bytes < FULL_BYTES:
        raise Unavailable(f"the disk is full: {free_bytes >> 20} MiB free")
