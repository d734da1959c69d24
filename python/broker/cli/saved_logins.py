"""The log-ins that `broker login` keeps: one for each broker, in one file that only its user may read."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import typer

from broker.client.address import API_PATH

_FILE = "logins.json"


class SavedLogin(msgspec.Struct, frozen=True, rename="camel"):
    """A log-in at one broker.

    Attributes:
        token: an access token or an API token; secret.
        expires: when the token ends; None where it ends only when it is revoked.
    """

    username: str
    token: str
    expires: datetime | None = None

    def __repr__(self) -> str:
        return f"SavedLogin(username={self.username!r}, expires={self.expires!r})"

    def has_ended(self, now: datetime) -> bool:
        """Whether the token is known to be over."""
        return self.expires is not None and self.expires <= now


class _Kept(msgspec.Struct, rename="camel"):
    latest: str | None = None
    logins: dict[str, SavedLogin] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SavedLogins:
    """The file. Every change replaces it as a whole, so a reader never sees half of one."""

    file: Path

    @classmethod
    def of_user(cls) -> "SavedLogins":
        """Those of whoever runs the command, in the user's configuration directory."""
        return cls(Path(typer.get_app_dir("broker")) / _FILE)

    def find(self, url: str) -> SavedLogin | None:
        """The log-in at a broker, by the URL that it was made with. Raises ValueError, OSError."""
        return self._read().logins.get(_key(url))

    def latest(self) -> str | None:
        """The URL of the latest log-in that is still kept. Raises ValueError, OSError."""
        return self._read().latest

    def keep(self, url: str, login: SavedLogin) -> None:
        """Keep a log-in in place of an earlier one at the same broker. Raises ValueError, OSError."""
        with self._alone():
            kept = self._read()
            kept.logins[_key(url)] = login
            kept.latest = _key(url)
            self._write(kept)

    def forget(self, url: str) -> bool:
        """Forget the log-in at a broker; whether there was one. Raises ValueError, OSError."""
        with self._alone():
            kept = self._read()
            found = kept.logins.pop(_key(url), None)
            if found is None:
                return False
            if kept.latest == _key(url):
                kept.latest = next(reversed(kept.logins), None)
            self._write(kept)
        return True

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes of this user from changing the file meanwhile."""
        self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The directory is locked: the file itself is replaced by each change.
        descriptor = os.open(self.file.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _read(self) -> _Kept:
        try:
            content = self.file.read_bytes()
        except FileNotFoundError:
            return _Kept()
        try:
            return msgspec.json.decode(content, type=_Kept)
        except msgspec.DecodeError:
            raise ValueError(f"{self.file} is damaged; delete it and log in again") from None

    def _write(self, kept: _Kept) -> None:
        # mkstemp makes a file that only its owner may read and write.
        descriptor, path = tempfile.mkstemp(dir=self.file.parent, prefix=_FILE)
        part = Path(path)
        try:
            with os.fdopen(descriptor, "wb") as target:
                target.write(msgspec.json.encode(kept))
            part.replace(self.file)
        finally:
            part.unlink(missing_ok=True)


def _key(url: str) -> str:
    return url.lower().rstrip("/").removesuffix(API_PATH)


def now() -> datetime:
    """The present moment, in UTC."""
    return datetime.now(UTC)
