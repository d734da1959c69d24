"""Decoder processes, forked from one that has loaded everything (`fork_server`), seen from their user.

A decoder is a Python that has loaded libvips, which takes a good part of a second of a core, and memory of
its own. A fork takes some milliseconds and shares that memory.

Forks of one process have the same addresses, and a crash may have told somebody of them. So the decoders that
follow a crash are forked from a new server.

Protocol: for each decoder a byte on the server's socket, with two descriptors (SCM_RIGHTS, unix(7)): the
decoder's end of the connection for jobs, and the server's end of another one for the decoder's life. On that
the server sends the decoder's process id and, when it has ended, its exit status, each as a `LIFE`. Whatever
closes or shuts down our end of it makes the server kill the decoder. A server whose socket we close
forks no more and ends with its last decoder.
"""

import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Self

LIFE = struct.Struct("i")

_SERVER = "broker.images.fork_server"
_START_S = 30.0  # for a server to load everything, on a machine that has little time
_EXIT_S = 5.0  # from the end of a decoder's life to that of its process
_UNKNOWN = -9  # the status of a decoder whose server has died, and that has died with it


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """What a decoder is told.

    Attributes:
        memory_bytes: private memory, over which its job fails.
        job_s: processor time of a job, after which SIGPROF ends it.
        kept_idle_s: without a job, after which it forgets decoded images.
        shrinks_fast: whether a JPEG's decoder does as much of the shrinking as it can.
    """

    memory_bytes: int
    job_s: float
    kept_idle_s: float
    shrinks_fast: bool

    def to_words(self) -> list[str]:
        """As arguments of a command."""
        numbers = self.memory_bytes, self.job_s, self.kept_idle_s, int(self.shrinks_fast)
        return [str(number) for number in numbers]

    @classmethod
    def of_words(cls, words: Sequence[str]) -> Self:
        """What `to_words` gave."""
        memory_bytes, job_s, kept_idle_s, shrinks_fast = words
        return cls(int(memory_bytes), float(job_s), float(kept_idle_s), bool(int(shrinks_fast)))


class DecoderForks:
    """Forks decoders for any threads. The first server starts when it is needed; `close` ends all of them."""

    def __init__(self, config: DecoderConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self._ending: list[_Server] = []  # those whose last decoders may still work
        self._is_closed = False

    def fork(self) -> "ForkedDecoder":
        """A new decoder. Blocks while a server starts. Raises OSError."""
        with suppress(OSError):  # the server has just ended, or been exchanged
            return self._try()
        return self._try()

    def exchange(self, crashed: "ForkedDecoder") -> None:
        """Fork the next decoders from another server than the one of the decoder that has crashed."""
        self._leave(crashed.server)

    def close(self) -> None:
        """End all servers, and with them all decoders and all waiting for one."""
        with self._lock:
            self._is_closed = True
            self._retire()
            for server in self._ending:
                server.kill()
            self._ending.clear()

    def _try(self) -> "ForkedDecoder":
        with self._lock:
            if self._is_closed:
                raise ConnectionAbortedError("no more decoders are forked")
            if self._server is None or not self._server.is_alive():
                self._retire()
                self._server = _Server(self._config)
            server = self._server
        try:
            return server.fork()
        except OSError as error:
            if isinstance(error, TimeoutError):
                server.kill()  # it hangs
            self._leave(server)
            raise

    def _leave(self, server: "_Server") -> None:
        """Fork no more from this server."""
        with self._lock:
            if server is self._server:
                self._retire()

    def _retire(self) -> None:
        """Have the server end with its last decoder."""
        self._ending = [server for server in self._ending if server.is_alive()]
        if self._server is not None:
            self._server.retire()
            self._ending.append(self._server)
            self._server = None


class ForkedDecoder:
    """One decoder. Used by one thread at a time; `kill` by any.

    Attributes:
        connection: for its jobs.
        server: that it was forked from.
    """

    def __init__(self, connection: socket.socket, life: socket.socket, server: "_Server") -> None:
        """Raises OSError: there is no such decoder, and the sockets stay the caller's."""
        self.connection, self.server = connection, server
        self._life = life
        self._status: int | None = None
        if self._read_life(_START_S) is None:
            raise ConnectionError("the fork server forks no decoder")

    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self.wait(0) is None

    def wait(self, timeout_s: float) -> int | None:
        """Its exit status, that of `subprocess.Popen`, or None for one that runs. Blocks for so long."""
        if self._status is None:
            with suppress(TimeoutError, BlockingIOError):
                status = self._read_life(timeout_s)
                self._status = _UNKNOWN if status is None else status
        return self._status

    def kill(self) -> None:
        """End the process at once; whoever reads from its connection gets the end of it."""
        for end in (self._life, self.connection):
            with suppress(OSError):  # it has been closed
                end.shutdown(socket.SHUT_RDWR if end is self.connection else socket.SHUT_WR)

    def end(self) -> None:
        """End the process and forget it."""
        self.kill()
        if self.wait(_EXIT_S) is None:
            self.server.kill()  # it hangs; its decoders end with it
            self.wait(_EXIT_S)
        self.connection.close()
        self._life.close()

    def _read_life(self, timeout_s: float) -> int | None:
        """What the server says next, None at its end. Raises TimeoutError, and BlockingIOError for 0."""
        self._life.settimeout(timeout_s)
        try:
            message = self._life.recv(LIFE.size)
        except ConnectionError:
            return None
        return LIFE.unpack(message)[0] if len(message) == LIFE.size else None


class _Server:
    """One fork server. Safe for any threads."""

    def __init__(self, config: DecoderConfig) -> None:
        self._lock = threading.Lock()
        self._requests, theirs = socket.socketpair()
        with theirs:
            # The environment has secrets; a decoder needs none of it.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-m", _SERVER, str(theirs.fileno()), *config.to_words()],
                pass_fds=[theirs.fileno()],
                env={},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def fork(self) -> ForkedDecoder:
        """A new decoder. Raises OSError."""
        with ExitStack() as stack:
            ours, jobs = socket.socketpair()
            life, seen = socket.socketpair()
            for end in (ours, life):
                stack.callback(end.close)
            with jobs, seen, self._lock:
                socket.send_fds(self._requests, [b"+"], [jobs.fileno(), seen.fileno()])
            decoder = ForkedDecoder(ours, life, self)
            stack.pop_all()
            return decoder

    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def retire(self) -> None:
        """Fork no more, and end with the last decoder."""
        with self._lock:
            self._requests.close()

    def kill(self) -> None:
        """End it and all its decoders at once."""
        self._process.kill()
        self._process.wait()
