"""Stands in for one of Ray's helpers of a node until somebody asks for it. Run as a script, by its path.

Arguments: an address and a port, 0 for a helper that nobody asks; then the helper's own command. The first
connection is refused and the helper takes this process' place; who asked asks again until it answers.
Standard input comes from the raylet: its end means that the raylet is gone.

It imports as little as it can: waiting takes 10 MB here and some 70 MB there.
"""

import os
import select
import socket
import sys


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
        ready: list[socket.socket | int] = []
        while door not in ready:
            ready = select.select(waited, [], [])[0]
            if raylet in ready and not os.read(raylet, 4096):
                return
    os.execv(command[0], command)  # noqa: S606 - the raylet's own command, which has no shell either


if __name__ == "__main__":
    main()
