"""Forks decoders for one process that uses them (`forks`, which tells the protocol).

It loads all that decoders need, once, and then touches no image: its forks do. Only a process with one
thread may fork and go on in Python, so nothing that is loaded here may start one.
"""

import gc
import os
import select
import signal
import socket
import sys
from contextlib import suppress

from broker import heap
from broker.images import child
from broker.images.decoding import open_libvips
from broker.images.forks import LIFE, DecoderConfig
from broker.images.jpegs import load_pillow


class ForkServer:
    """Decoders, and the sockets on which their user learns of them."""

    def __init__(self, requests: socket.socket, config: DecoderConfig) -> None:
        self._requests, self._config = requests, config
        self._is_asked = True
        self._lives: dict[int, socket.socket] = {}  # by process id, until it has ended
        self._wanted: dict[socket.socket, int] = {}  # those that nobody has asked to end
        self._woken, self._wake = socket.socketpair()

    def run(self) -> None:
        """Fork for each request, kill whom nobody wants any more, and tell of those that have ended.

        Returns when nobody can ask any more and all decoders have ended.
        """
        self._wake.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)  # so that it writes to the wake-up descriptor
        while self._is_asked or self._lives:
            requests = [self._requests] if self._is_asked else []
            for ready in select.select([self._woken, *requests, *self._wanted], [], [])[0]:
                if ready is self._woken:
                    self._woken.recv(4096)
                    self._reap()
                elif ready is self._requests:
                    self._fork()
                elif (pid := self._wanted.pop(ready, 0)) != 0:
                    os.kill(pid, signal.SIGKILL)  # ended or not, it is ours until `_reap` has seen it

    def _fork(self) -> None:
        message, descriptors, _, _ = socket.recv_fds(self._requests, 1, 2)
        if not message:
            self._is_asked = False
            return
        connection, life = (socket.socket(fileno=descriptor) for descriptor in descriptors)
        with connection:
            try:
                pid = os.fork()
            except OSError:  # of memory, or of processes
                life.close()
                return
            if pid == 0:
                self._decode(connection, life)
        self._lives[pid], self._wanted[life] = life, pid
        _tell(life, pid)

    def _decode(self, connection: socket.socket, life: socket.socket) -> None:
        """Go on as the decoder; never returns."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for other in (self._requests, self._woken, self._wake, life, *self._lives.values()):
                other.close()
            child.serve(connection, self._config)
            status = 0
        finally:
            os._exit(status)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                with self._lives.pop(pid) as life:
                    self._wanted.pop(life, None)
                    _tell(life, os.waitstatus_to_exitcode(status))


def _tell(life: socket.socket, number: int) -> None:
    with suppress(OSError):  # nobody wants to know
        life.sendall(LIFE.pack(number))


def load() -> None:
    """Load all that decoders need, so that none loads anything for itself, and leave it as it is then."""
    open_libvips()
    load_pillow()
    gc.collect()
    heap.trim()  # else decoders would find free memory among what they share, and write to it
    # Looking for garbage would write to all memory, and so end the sharing.
    gc.disable()
    gc.freeze()


def main() -> None:
    """Serve. Arguments: the socket of requests, and a `DecoderConfig` in words."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    child.end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which closes the socket
    load()
    ForkServer(requests, DecoderConfig.of_words(sys.argv[2:])).run()


if __name__ == "__main__":
    main()
