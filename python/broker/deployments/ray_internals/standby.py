"""Replaces a helper process of Ray on a node until it is needed. Run as a script, by its path.

Arguments: an address and a port, 0 for a helper that nobody asks; then the helper's own command. The first
connection is closed and the helper takes this process' place; who asked asks again until it answers.
Connections of other users of the machine are closed and nothing more. Standard input comes from the raylet:
its end means that the raylet is gone.

It imports as little as it can: waiting takes 10 MB here and some 70 MB there.

Names used: the arguments by which a raylet is told of its helpers (`ray_cluster`), and that a helper is
asked again until it answers.
Probe: the arguments are looked for when the raylet starts.
Fall-back: Ray's own helpers start.
Gain: 190 MB, and their imports at the start.
"""

import os
import select
import socket
import sys

_NO_LINGER = (1).to_bytes(4, sys.byteorder) + bytes(4)  # `struct linger` (socket(7)): on, for 0 seconds


def main() -> None:
    """Wait for the first connection, or for the end of the raylet."""
    host, port, command = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    raylet = sys.stdin.fileno()
    with socket.socket() as door:
        waited: list[socket.socket | int] = [raylet]
        if port:
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            door.bind((host, port))
            door.listen()
            waited.append(door)
        is_asked = False
        while not is_asked:
            ready = select.select(waited, [], [])[0]
            if raylet in ready and not os.read(raylet, 4096):
                return
            is_asked = door in ready and _is_asked(door)
    os.execv(command[0], command)  # noqa: S606 - the raylet's own command, which has no shell either


def _is_asked(door: socket.socket) -> bool:
    """Whether a process of our user connects, by the kernel's table of sockets (proc_pid_net(5))."""
    caller, (host, port) = door.accept()
    with caller:
        # Closed by a reset, which leaves the port free at once.
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        try:
            with open("/proc/net/tcp") as table:  # noqa: PTH123 - `pathlib` is not imported here
                rows = [line.split() for line in table]
        except FileNotFoundError:  # not Linux
            return True
    # Columns: number, local address, remote address, state, queues, timer, tries, user. One that has hung up
    # is no longer in state 1 (established), and has no user.
    address = f"{int.from_bytes(socket.inet_aton(host), sys.byteorder):08X}:{port:04X}"
    return [row[7] for row in rows if (row[1], row[3]) == (address, "01")] == [str(os.geteuid())]


if __name__ == "__main__":
    main()
