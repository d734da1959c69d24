"""Which processes decode for another one."""

from collections.abc import Iterator

import psutil


def decoders_of(pid: int) -> list[psutil.Process]:
    """The processes that decode for the one of this id. Children that end meanwhile are left out."""
    return list(_decoders_of(pid))


def _decoders_of(pid: int) -> Iterator[psutil.Process]:
    for child in psutil.Process(pid).children():
        try:
            words = child.cmdline()
        except psutil.NoSuchProcess:  # gone, or a zombie
            continue
        if "broker.images.child" in words:
            yield child
