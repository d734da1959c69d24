"""What another user of the machine may try: files, sockets, ports."""

import os
import pickle
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil

from broker.deployments.data_dir import find_scratch
from tests.attack.attack import Attack
from tests.attack.target import Target
from tests.attack.wire import Caller

_LOOPBACK = ("127.", "::1", "::ffff:127.")


class _Bomb:
    """What would be executed if it were unpickled."""

    def __init__(self, trace: str) -> None:
        self._trace = trace

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self._trace,)


def _roots(target: Target) -> Iterator[Path]:
    yield target.instance.data_dir
    scratch = find_scratch(target.instance.data_dir)
    if scratch is not None:
        yield scratch
    for pid in target.instance.processes():
        with suppress(OSError):
            yield Path(f"/proc/{pid}/cwd").resolve()


def _is_reachable(path: Path) -> bool:
    """Whether others may go to a file: every directory on the way lets them."""
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in path.parents)


async def _files(caller: Caller, _size: int) -> None:
    """Nothing of the instance can be changed by others, and nothing that it keeps can be read."""
    open_files = []
    for root in set(_roots(caller.target)):
        if Path(__file__).is_relative_to(root):  # where the tests run, not what the instance has
            continue
        for path in (root, *root.rglob("*")):
            with suppress(FileNotFoundError):  # it was there a moment ago
                mode = path.lstat().st_mode
                if not stat.S_ISLNK(mode) and mode & (stat.S_IWOTH | stat.S_IROTH) and _is_reachable(path):
                    open_files.append(f"{path} {stat.filemode(mode)}")
    assert not open_files, open_files[:10]


async def _programs(caller: Caller, _size: int) -> None:
    """What the processes execute, and the directories on the way to it, only we or root may change."""
    changeable = set()
    for pid in caller.target.instance.processes():
        with suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            named = [Path(word) for word in process.cmdline() if word.startswith("/") and len(word) < 4_096]
            for path in (Path(process.exe()), *named):
                for part in (path, *path.parents):
                    if not part.exists():
                        continue
                    mode = part.stat().st_mode
                    is_shared = mode & (stat.S_IWOTH | stat.S_IWGRP) and not mode & stat.S_ISVTX
                    if (
                        is_shared
                        and not stat.S_ISSOCK(mode)
                        and not stat.S_ISCHR(mode)
                        and _is_reachable(part)
                    ):
                        changeable.add(f"{part} {stat.filemode(mode)}")
    assert not changeable, sorted(changeable)[:10]


def _listeners(target: Target) -> dict[int, str]:
    """Port → address of each socket that a process of the instance listens on."""
    found = {}
    for pid in target.instance.processes():
        with suppress(psutil.Error):
            for connection in psutil.Process(pid).net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    found[connection.laddr.port] = connection.laddr.ip
    return found


async def _ports(caller: Caller, _size: int) -> None:
    """With the default settings nothing listens beyond this machine."""
    wide = {port: host for port, host in _listeners(caller.target).items() if not host.startswith(_LOOPBACK)}
    assert not wide, f"sockets that the network reaches: {wide}"


async def _garbage(caller: Caller, size: int) -> None:
    """Garbage and pickles to every port: none is executed, nobody dies."""
    trace = caller.target.instance.data_dir / "unpickled"
    bomb = pickle.dumps(_Bomb(str(trace)))
    framed = len(bomb).to_bytes(4, "big") + bomb
    for port, host in _listeners(caller.target).items():
        for data in (bomb, framed, b"\0" * 32 + b"\0" * 32 + framed, os.urandom(size), b"\xff" * size):
            with suppress(OSError):
                async with _at(caller, host).connected(port) as connection:
                    await connection.send(data, 2)
                    connection.writer.write_eof()
    assert not trace.exists(), "a pickle was executed"


def _at(caller: Caller, host: str) -> Caller:
    is_other = host.startswith("127.") and host != "127.0.0.1"
    return replace(caller, host=host) if is_other else caller


ATTACKS = (
    Attack("files", "neighbour", "neither read nor changed", _files, is_scaled=False),
    Attack("programs", "neighbour", "only we or root may change what runs", _programs, is_scaled=False),
    Attack("ports", "neighbour", "nothing listens beyond the loopback network", _ports, is_scaled=False),
    Attack("garbage to every port", "neighbour", "nothing is executed, nobody dies", _garbage, 64_000),
)
