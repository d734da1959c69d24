"""Which processes decode for another one."""

from collections.abc import Iterator

import psutil


def decoders_of(pid: int) -> list[psutil.Process]:
    """The processes that decode for the one of this id. Those that end meanwhile are left out."""
    return [decoder for server in fork_servers_of(pid) for decoder in _children_of(server)]


def fork_servers_of(pid: int) -> list[psutil.Process]:
    """The processes that the decoders of the one of this id are forked from."""
    return list(_children_of(psutil.Process(pid)))


def _children_of(parent: psutil.Process) -> Iterator[psutil.Process]:
    try:
        children = parent.children()
    except psutil.NoSuchProcess:
        return
    for child in children:
        try:
            words = child.cmdline()
        except psutil.NoSuchProcess:  # gone, or a zombie
            continue
        if "broker.images.fork_server" in words:
            yield child
