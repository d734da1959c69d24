"""The life cycle: join or start the server, keep it alive, stop it when the last user leaves."""

import asyncio
import hashlib
import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from broker.concurrency.back_off import Backoff, Delays
from broker.setup_error import SetupError
from broker.storage.embedded import cluster, process
from broker.storage.embedded.binaries import find_binaries, reachable
from broker.storage.embedded.locks import SharedLock, exclusive
from broker.storage.embedded.os_user import OsUser, choose

_LOCK_S = 150.0  # longer than another user's start may take
_WATCH_S = 5.0  # between two looks at a server whose end is told
_POLL_S = 0.1  # where the system does not tell
_RETRY = Backoff(0.2, 5.0, jitter=0)
_SOCKET_PATH_BYTES = 100  # of the 107 that an address holds (unix(7))
_SOCKET_NAME = ".s.PGSQL.5432"

_log = logging.getLogger(__name__)


class EmbeddedPostgres:
    """One user of the server in `root`.

    Call `start`, then keep `supervise` running in a task, then cancel that and call `stop`. A user that is
    killed leaves the server running; the next one to start joins it, and the last to stop takes it down.
    """

    def __init__(self, root: Path, *, binaries: str = "", settings: Mapping[str, str] | None = None) -> None:
        """Nothing is touched yet.

        Args:
            root: directory of the server's files; made when absent, shared by all its users.
            binaries: directory of PostgreSQL's programs; empty finds some.
            settings: of PostgreSQL that are to differ from ours when this user starts the server.
        """
        self._root = root.absolute()
        self._data = self._root / "data"
        self._log = self._root / "server.log"
        self._configured = binaries
        self._settings = settings or {}
        self._users: SharedLock | None = None

    @property
    def dsn(self) -> str:
        """Where the server is, whether it runs or not."""
        return f"postgresql://{cluster.SUPERUSER}@/postgres?host={quote(str(self.socket_directory))}"

    @property
    def socket_directory(self) -> Path:
        """The directory of the server's socket: in `root` unless that makes its name too long."""
        directory = self._root / "run"
        if len(os.fsencode(directory / _SOCKET_NAME)) <= _SOCKET_PATH_BYTES:
            return directory
        digest = hashlib.sha256(os.fsencode(self._root)).hexdigest()[:20]
        return Path(tempfile.gettempdir()) / f"broker-{digest}"

    @property
    def pid(self) -> int | None:
        """The process id of the postmaster, None when it does not run."""
        return process.find_postmaster(self._data)

    async def start(self) -> str:
        """Be a user of the server; start it, and make its data directory, when that is still to be done.

        Returns:
            The DSN. Not safe to cancel half-way: the work goes on in its thread.

        Raises:
            SetupError: one line that says why there is no server.
        """
        await asyncio.to_thread(self._join)
        return self.dsn

    async def supervise(self) -> None:
        """Start the server again whenever it dies, and bound its log, until cancelled."""
        delays = Delays(_RETRY)
        while True:
            pid = self.pid
            if pid is not None:
                delays.reset()
                await process.wait_for_end(pid, _WATCH_S, _POLL_S)
                await asyncio.to_thread(process.bound_log, self._log)
                continue
            _log.warning("postgres_died")
            try:
                await asyncio.to_thread(self._ensure_running)
            except SetupError as error:
                wait_s = delays.next_s()
                _log.error("postgres_restart_failed", extra={"cause": str(error), "retry_s": wait_s})
                await asyncio.sleep(wait_s)

    async def stop(self) -> None:
        """Stop being a user; the last one stops the server. Idempotent."""
        await asyncio.to_thread(self._leave)

    def _join(self) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        # Not its user's, when that is another: we write files here, and it could put links in their places.
        os.chown(self._root, os.geteuid(), os.getegid())
        self._root.chmod(0o700)
        with exclusive(self._root / "lock", _LOCK_S):
            self._users = self._users or SharedLock(self._root / "users")
            try:
                self._run()
            except BaseException:
                self._users.release()
                self._users = None
                raise

    def _ensure_running(self) -> None:
        with exclusive(self._root / "lock", _LOCK_S):
            if self._users is not None:
                self._run()

    def _leave(self) -> None:
        if self._users is None:
            return
        with exclusive(self._root / "lock", _LOCK_S):
            if self._users.release():
                process.stop(self._data)
            self._users = None

    def _run(self) -> None:
        """Create and start whatever does not exist yet. The caller holds the lock."""
        pid = process.find_postmaster(self._data)
        if pid is not None:
            # Also one that its starter was killed over before it was ready.
            process.await_ready(self._data, self._log, pid)
            return
        user = choose(self._data)
        major = cluster.read_major(self._data)
        binaries = reachable(find_binaries(self._configured, major), user)
        if major is None:
            cluster.create(self._root, self._data, binaries, user)
        self._make_socket_directory(user)
        process.remove_traces(self._data, self.socket_directory / _SOCKET_NAME)
        # The handles are open only while the server starts; it keeps its own.
        data = os.open(self._data, os.O_RDONLY | os.O_DIRECTORY)
        socket = os.open(self.socket_directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            arguments = cluster.server_arguments(
                binaries,
                cluster.visible_path(self._data, data, user),
                cluster.visible_path(self.socket_directory, socket, user),
                self._settings,
            )
            process.start(arguments, self._data, self._log, user, (data, socket))
        finally:
            os.close(data)
            os.close(socket)

    def _make_socket_directory(self, user: OsUser) -> None:
        directory = self.socket_directory
        try:
            directory.mkdir(mode=0o700)
        except FileExistsError:
            # In a directory that all may write to, another user may have created it first.
            status = directory.lstat()
            if directory.is_symlink() or status.st_uid not in (user.uid, os.geteuid()):
                raise SetupError(f"{directory}: belongs to another user; remove it") from None
        user.own(directory)
