"""Checks that nobody else can replace a directory, or a file, or any directory above it.

Whoever may write a directory may rename what is in it, whatever the modes of that are. So every directory
from the root down has to belong to us or to root, and nobody else may write it. Two exceptions: a sticky
directory such as `/tmp`, where only the owner of an entry may rename it (the entry has to be ours then), and
one that our own group may write when nobody else is in that group, which some systems give to every user.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from broker.setup_error import SetupError

_ROOT = 0
_ACCESS_LIST = "system.posix_acl_access"  # what users and groups beside the owner's may do (acl(5))


def require_private(path: Path, what: str) -> None:
    """Raise `SetupError` when another user could change `path` or put something else there.

    Args:
        path: an existing directory, resolved: it has no symbolic links.
        what: the directory, in words, for the message.
    """
    if not path.is_dir():
        raise SetupError(f"{path}: is not a directory")
    _require_private(path, what)


def require_private_file(path: Path, what: str) -> None:
    """Raise `SetupError` when another user could change the file or put another one there.

    Args:
        path: an existing file, or a symbolic link to one; then the places of all links count.
        what: the file, in words, for the message.
    """
    place = path.absolute()
    while True:
        place = place.parent.resolve() / place.name
        _require_private(place, what)
        if not place.is_symlink():
            return
        place = place.parent / place.readlink()


def _require_private(path: Path, what: str) -> None:
    for each, status in _from_the_root(path):
        if status.st_uid not in (_ROOT, os.geteuid()):
            raise SetupError(f"{what} {path} is not safe: {each} belongs to {_user_name(status.st_uid)}")
        if _others_write(each, status) and (each == path or not status.st_mode & stat.S_ISVTX):
            raise SetupError(f"{what} {path} is not safe: {each} can be written by others")


def _from_the_root(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for each in (*reversed(path.parents), path):
        yield each, each.lstat()


def _others_write(path: Path, status: os.stat_result) -> bool:
    if stat.S_ISLNK(status.st_mode):
        return False  # its mode says nothing; who may exchange it is who may write its directory
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _is_own_group(path, status.st_gid)


def _is_own_group(path: Path, group: int) -> bool:
    """Whether only we are in `group`; where an access list gives more away, it is not our own."""
    with suppress(OSError, AttributeError):  # a file system without lists, a system without the call
        if _ACCESS_LIST in os.listxattr(path):
            return False
    if group == _ROOT:
        return True
    import grp
    import pwd

    try:
        us = pwd.getpwuid(os.geteuid())
        others = set(grp.getgrgid(group).gr_mem) - {us.pw_name}
    except KeyError:
        return False
    return us.pw_gid == group and not others and all(u.pw_gid != group or u == us for u in pwd.getpwall())


def _user_name(uid: int) -> str:
    import pwd

    try:
        return f"the user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"the user {uid}"
