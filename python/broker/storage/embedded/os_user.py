"""The user that PostgreSQL's programs run as: they refuse to run as root."""

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.setup_error import SetupError

_CANDIDATES = ("postgres", "nobody")


@dataclass(frozen=True, slots=True)
class OsUser:
    """A user of the operating system; `is_other` when it is not the one that we are."""

    uid: int
    gid: int
    is_other: bool

    def spawn_arguments(self) -> dict[str, Any]:
        """Arguments of `subprocess` that run a program as this user."""
        if not self.is_other:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def own(self, path: Path) -> None:
        """Give this user `path`, for it alone."""
        if self.is_other:
            os.chown(path, self.uid, self.gid)
        path.chmod(0o700)

    def can_traverse(self, directory: Path) -> bool:
        """Whether the user may pass through `directory` and all above it, by their mode bits."""
        directory = directory.resolve()
        return not self.is_other or all(self._may_pass(d.stat()) for d in (directory, *directory.parents))

    def _may_pass(self, status: os.stat_result) -> bool:
        if status.st_uid == self.uid:
            return bool(status.st_mode & stat.S_IXUSR)
        if status.st_gid == self.gid:
            return bool(status.st_mode & stat.S_IXGRP)
        return bool(status.st_mode & stat.S_IXOTH)


def choose(cluster: Path) -> OsUser:
    """The user that runs the server of `cluster`: its owner where it exists, never root.

    Raises:
        SetupError: we are root and the machine has no user to step down to.
    """
    if os.geteuid() != 0:
        return OsUser(os.geteuid(), os.getegid(), is_other=False)
    if cluster.exists() and cluster.stat().st_uid != 0:
        owner = cluster.stat()
        return OsUser(owner.st_uid, owner.st_gid, is_other=True)
    for name in _CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return OsUser(entry.pw_uid, entry.pw_gid, is_other=True)
    raise SetupError("PostgreSQL cannot run as root and there is no user `postgres` or `nobody`; create one")
