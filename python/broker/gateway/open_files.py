"""How many connections a gateway can have, given the limit of open files."""

import resource

RESERVE = 1_536
"""Open files that are not for viewers: up to 1,024 connections that are told why they are refused, links, the
database's pool, logs, and what Ray has open. Where half of the allowed files are fewer, half of them.
"""


def most_connections(wanted: int, files: int | None = None) -> int:
    """The connections of a gateway of which `wanted` are set.

    Args:
        files: that a process may have open, `resource.RLIM_INFINITY` for any number; None asks for the limit
            of this process.
    """
    if files is None:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, files - min(RESERVE, files // 2)))
