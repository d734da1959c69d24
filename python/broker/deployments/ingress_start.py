"""What Ray Serve starts as HAProxy: writes our configuration in the place of Ray's, then becomes HAProxy.

Ray starts it anew for each change: `… -db -f CONFIGURATION [-dR] [-sf PID …] [-x SOCKET]`. The configuration
is exchanged in its place, since Ray finds its processes by the path. When anything is not as it must be,
nothing is started: HAProxy then goes on as it was, or does not come up, and the reason is in a file beside
the configuration and in the log that Ray keeps of it.

It imports little: a change is under way until it has run.
"""

import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

from broker.deployments.haproxy import find_haproxy
from broker.deployments.haproxy_input import IngressFault, read_ray
from broker.deployments.ingress import write_config
from broker.deployments.private_paths import require_private
from broker.settings import SettingError, Settings
from broker.storage.errors import SetupError

FAULT = "fault"
"""Ends the name of the file with the reason."""


def main() -> None:
    """Become HAProxy. Arguments: HAProxy's."""
    arguments = sys.argv[1:]
    path = Path(arguments[arguments.index("-f") + 1]) if "-f" in arguments else None
    try:
        if path is not None:
            exchange(path)
        program = find_haproxy()
        if program is None:
            raise IngressFault("HAProxy cannot run on this machine")
        if path is not None:
            _fault_file(path).unlink(missing_ok=True)
    except (IngressFault, SettingError, SetupError, OSError, UnicodeDecodeError) as error:
        _tell(path, str(error))
        sys.exit(f"the ingress cannot be started: {error}")
    os.execv(program, [str(program), *arguments])  # noqa: S606 - a program of our own wheel


def exchange(path: Path) -> None:
    """Put our configuration in the place of Ray's at `path`.

    Raises:
        IngressFault: it cannot be made.
        SetupError: others could change what is in the place.
        SettingError: a setting of ours has a value that it cannot have.
    """
    _close(path.parent)
    text = write_config(
        Settings.load(),
        read_ray(path.read_text()),
        threads=os.cpu_count() or 1,
        descriptors=_raise_file_limit(),
    )
    # The secret is in it. Whole or not at all: what stays half written must not be started.
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    new.replace(path)


def _close(directory: Path) -> None:
    """Only we may look into a directory of configurations and sockets; Ray makes it open to readers."""
    require_private(directory.resolve(), "the directory of the ingress")
    directory.chmod(0o700)


def _raise_file_limit() -> int:
    """Let HAProxy open as many files as the system allows; returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft if hard == resource.RLIM_INFINITY else hard


def _tell(path: Path | None, reason: str) -> None:
    if path is not None:
        with suppress(OSError):  # the place itself may be at fault
            _fault_file(path).write_text(reason)


def _fault_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.{FAULT}")


if __name__ == "__main__":
    main()
