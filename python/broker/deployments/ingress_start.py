"""The program that Ray Serve starts as HAProxy: replaces the configuration, then becomes HAProxy.

Ray starts it again for each change: `… -db -f CONFIGURATION [-dR] [-sf PID …] [-x SOCKET]`. The configuration
is exchanged in its place, since Ray finds its processes by the path. When anything is not as it must be,
nothing is started: HAProxy then goes on as it was, or does not come up, and the reason is in a file beside
the configuration and in the log that Ray keeps of it.

Ray's manager of HAProxy may die, and its process of HAProxy serves on. The manager that follows knows neither
that process nor, at first, an application. So the new process opens no door until it has an application to
lead to, and then replaces the process that was left behind.

It imports little: a change is under way until it has run.
"""

import os
import resource
import socket
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from broker import timers
from broker.deployments.ingress import KINDS, write_config
from broker.deployments.ingress_key import key_of_cluster
from broker.deployments.node_address import on_this_node
from broker.deployments.private_paths import require_private
from broker.deployments.ray_internals.haproxy import CONNECT_FILE, REPLICA, find_haproxy
from broker.deployments.ray_internals.haproxy_input import IngressFault, RayInput, read_ray
from broker.settings import SettingError, Settings
from broker.setup_error import SetupError

FAULT = "fault"
"""Ends the name of the file with the reason."""

CERTIFICATE = "pem"
"""Ends the name of the file with the certificate and its key."""

_DIRECTORY = "the directory of the ingress"
_NAME = 3  # the column of a server in `show servers state`; the one of its backend is 1
_KINDS = tuple(f"{kind}-" for kind in KINDS)
_ANSWER_S = 1.0
_PATH_BYTES = 97  # of a socket: 107 (unix(7)) less what HAProxy adds to those that it makes
_RAY_WRITES = ("500.http", "ingress_request_router.lua")  # besides what has the names that we give


def main() -> None:
    """Become HAProxy. Arguments: HAProxy's."""
    arguments = sys.argv[1:]
    path = Path(arguments[arguments.index("-f") + 1]) if "-f" in arguments else None
    try:
        program = find_haproxy()
        if program is None:
            raise IngressFault("HAProxy cannot run on this machine")
        if path is not None:
            others = [pid for pid in _find_processes(program, path) if pid not in arguments]
            ray = exchange(path, is_alone=not others)
            if ray.applications or not others:
                withdraw(ray)
                arguments += ["-sf", *others] if others else []
            _fault_file(path).unlink(missing_ok=True)
    except (IngressFault, SettingError, SetupError, OSError, UnicodeDecodeError) as error:
        _tell(path, str(error))
        sys.exit(f"the ingress cannot be started: {error}")
    # HAProxy would inherit the timers of the worker that starts it, which may be a second late. It takes a
    # poll that returns over 100 ms late for a step of the system's clock, and does not count that time.
    timers.allow_late(timers.EXACT_S)
    os.execv(program, [str(program), *arguments])  # noqa: S606 - a program of our own wheel


def exchange(path: Path, *, is_alone: bool = True) -> RayInput:
    """Put our configuration in the place of Ray's at `path`; returns what was read of Ray's.

    Args:
        is_alone: no process was left behind. If one was, a configuration without applications opens no door.

    Raises:
        IngressFault: it cannot be made.
        SetupError: others could change what is in the place.
        SettingError: a setting of ours has a value that it cannot have.
    """
    require_private(path.parent.resolve(), _DIRECTORY)
    ray = read_ray(path.read_text())
    for place in (ray.admin, ray.state_file):
        require_private(Path(place).parent.resolve(), _DIRECTORY)
    _close(path, ray)
    settings = on_this_node(Settings.load())
    if settings.ray_address and not settings.ingress_key:
        settings = replace(settings, ingress_key=key_of_cluster())
    certificate = certificate_file(path)
    if settings.http_tls_port:
        _put_certificate(settings, certificate)
    text = write_config(
        settings,
        ray,
        threads=os.cpu_count() or 1,
        descriptors=_raise_file_limit(),
        files=_files(path.parent),
        certificate=certificate,
        gateway=_gateway_file(path.parent),
        is_open=is_alone or bool(ray.applications),
    )
    # The secret is in it. Whole or not at all: what stays half written must not be started.
    new = path.with_name(f"{path.name}.new")
    _write_new(new, text)
    new.replace(path)
    return ray


def certificate_file(path: Path) -> Path:
    """Where HAProxy finds its certificate with the key. Args: path: of its configuration."""
    return path.with_name(f"{path.name}.{CERTIFICATE}")


def _put_certificate(settings: Settings, file: Path) -> None:
    """Write the certificate and its key as they are now; what HAProxy had stays while they are not usable.

    Raises:
        SetupError: they are not, and there is no former one.
    """
    from broker.deployments.http_key_pair import read_certificate  # most starts have none

    try:
        content = read_certificate(settings).decode("latin-1")
    except SetupError:
        if file.exists():
            return
        raise
    new = file.with_name(f"{file.name}.new")
    _write_new(new, content)
    new.replace(file)


def withdraw(ray: RayInput) -> None:
    """Have the process of HAProxy that is replaced send nothing more to replicas that Ray names no more.

    It may have requests to send for as long as its clients take for them, and knows no other list. Its kept
    connections to these replicas are closed.

    Where Ray names none of those that it knows, as when all are exchanged in one step, it goes on with them:
    it takes requests until the new process has started, and they listen until no ingress names them
    (`departures`).
    """
    named = {
        (f"{kind}-{application.name}", line.split()[1]): line.endswith(" backup")
        for application in ray.applications
        for line in application.servers
        for kind in KINDS
    }
    with suppress(OSError, UnicodeDecodeError):  # there is none yet, or no more; it could only have said yes
        rows = [line.split() for line in ask(ray.admin, "show servers state").splitlines()]
        known = [(row[1], row[_NAME]) for row in rows if len(row) > _NAME and row[1].startswith(_KINDS)]
        # A backup is Ray Serve's own proxy, which other nodes than the head do not reach.
        lasting = {each[0] for each in known if named.get(each) is False}
        commands = [
            f"set server {backend}/{name} state maint"
            for backend, name in known
            if (backend, name) not in named and backend in lasting
        ]
        if commands:
            ask(ray.admin, ";".join(commands))


def _find_processes(program: Path, path: Path) -> list[str]:
    """The processes of HAProxy that run with our configuration, by their ids."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):  # it has ended
            if entry.name.isdecimal() and entry.stat().st_uid == os.geteuid():
                command = (entry / "cmdline").read_bytes().split(b"\0")
                if command[0] == bytes(program) and bytes(path) in command:
                    found.append(entry.name)
    return found


def ask(admin: str, command: str) -> str:
    """What HAProxy replies at its socket for operators. Raises OSError: nothing, or not in time."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(_ANSWER_S)
        peer.connect(admin)
        peer.sendall(f"{command}\n".encode())
        return b"".join(iter(lambda: peer.recv(65_536), b"")).decode()


def _files(directory: Path) -> dict[int, Path]:
    """At which files the replicas of this node listen, by their ports; HAProxy refuses longer paths."""
    found = ((file.name.removeprefix(REPLICA), file) for file in directory.glob(f"{REPLICA}*"))
    return {
        int(port): file
        for port, file in found
        if port.isdecimal() and len(bytes(file)) <= _PATH_BYTES and file.is_socket()
    }


def _gateway_file(directory: Path) -> Path | None:
    """Where the gateway of this node answers, now or when it has started."""
    file = directory / CONNECT_FILE
    return file if len(bytes(file)) <= _PATH_BYTES else None


def _close(path: Path, ray: RayInput) -> None:
    """Only we may look into a directory of configurations and sockets; Ray makes it open to readers.

    Raises:
        SetupError: others use it for something else.
    """
    directory = path.parent
    if not directory.stat().st_mode & 0o077:
        return
    ours = (*_RAY_WRITES, REPLICA, *(Path(place).name for place in (path, ray.admin, ray.state_file)))
    if any(not name.startswith(ours) for name in os.listdir(directory)):  # noqa: PTH208 - names are all that is wanted
        raise SetupError(f"{_DIRECTORY} {directory} contains other files and other users can open it")
    directory.chmod(0o700)


def _raise_file_limit() -> int:
    """Let HAProxy open as many files as the system allows; returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft if hard == resource.RLIM_INFINITY else hard


def _tell(path: Path | None, reason: str) -> None:
    if path is None:
        return
    with suppress(OSError, SetupError):  # the place itself may be at fault; then nothing is written there
        require_private(path.parent.resolve(), _DIRECTORY)
        _write_new(_fault_file(path), reason)


def _write_new(path: Path, text: str) -> None:
    """Write a file for us alone in the place of one that may be there."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def _fault_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.{FAULT}")


if __name__ == "__main__":
    main()
