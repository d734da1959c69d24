"""What two hosts of a `Network` see of each other; prints JSON. Only in `network.isolated`."""

import json
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.cluster.network import Host, Network

_PORT = 5000
_ECHO = f"""
import socket
door = socket.create_server(("0.0.0.0", {_PORT}))
while True:
    peer, _ = door.accept()
    with peer:
        while data := peer.recv(100):
            peer.sendall(data)
"""
_ASK = f"""
import socket, sys, time
peer = socket.create_connection((sys.argv[1], {_PORT}), 10)
for line in sys.stdin:
    before = time.monotonic()
    peer.sendall(b"x")
    peer.recv(100)
    print(time.monotonic() - before, flush=True)
"""
_DELAY_S = 0.1


def main() -> None:
    """Cut a host off and make a way bad."""
    network = Network()
    one, other = network.add(), network.add()
    subprocess.Popen([*one.prefix, sys.executable, "-c", _ECHO])
    _await_door(one)
    asking = subprocess.Popen(
        [*other.prefix, sys.executable, "-c", _ASK, one.ip],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    good_s = _ask(asking)
    with network.bad_way(one, other, _DELAY_S, 0.0) as way:
        bad_s = _ask(asking)
    again_s = _ask(asking)
    asking.kill()
    one.cut()
    is_cut = not _is_reached(one)
    one.heal()
    found = {
        "good_s": good_s,
        "bad_s": bad_s,
        "again_s": again_s,
        "carried": way.carried,
        "is_cut": is_cut,
        "is_healed": _is_reached(one),
        "own_interfaces": sorted(path.name for path in Path("/sys/class/net").iterdir()),
        "inhabitants": len(one.processes()),
    }
    network.close()
    print(json.dumps(found))  # noqa: T201


def _await_door(host: Host) -> None:
    while not _is_reached(host):
        time.sleep(0.05)


def _is_reached(host: Host) -> bool:
    with suppress(OSError), socket.create_connection((host.ip, _PORT), 3):
        return True
    return False


def _ask(asking: "subprocess.Popen[str]") -> float:
    assert asking.stdin is not None
    assert asking.stdout is not None
    asking.stdin.write("\n")
    asking.stdin.flush()
    return float(asking.stdout.readline())


if __name__ == "__main__":
    main()
