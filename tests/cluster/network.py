"""Hosts with addresses of their own on one machine: network namespaces (network_namespaces(7)) and a bridge.

The bridge lies in a namespace of the caller's, made by `isolated`, which is also the first process of its own
process namespace: when it ends, the kernel ends everything in it and removes all interfaces. Nothing of the
machine's own network is touched. The caller is on the bridge too, as the place of clients, the front door and
the database.

A host can be cut off from all others, and the way between two hosts can be made bad. Packets of a bad way go
through a pair of TUN devices, which a thread of ours carries late, or loses; that works on kernels that have
no netem.
"""

import array
import fcntl
import heapq
import os
import random
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

HUB = "10.77.0.254"
"""The caller's own address."""

_BRIDGE = "hub"
_TUNSETIFF = 0x400454CA  # linux/if_tun.h
_TUN_WITHOUT_HEADER = 0x0001 | 0x1000
_PACKET_BYTES = 65_536
_HOLD = "import signal; signal.pause()"
_TOOLS = ("ip", "unshare", "nsenter")
_INSIDE = "TESTS_ISOLATED"  # without our prefix, under which the product knows its settings only


def why_not() -> str:
    """Why this machine allows no namespaces; empty where it does."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    missing = [name for name in _TOOLS if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} of iproute2 and util-linux are not installed"
    probe = ["unshare", "--net", "ip", "link", "add", _BRIDGE, "type", "bridge"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr.strip() or "the kernel refuses"


def isolated(command: Sequence[str]) -> list[str]:
    """The command as the first process of namespaces of its own; all of them end with it.

    A shell is the first one in truth: somebody has to wait for orphans.
    """
    shell = ["sh", "-c", '"$@"; exit $?', "sh", *command]
    return ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", *shell]


def run_isolated(module: str, words: Sequence[str], play: Callable[[], int]) -> int:
    """Play in namespaces of its own, by a run of the same module in them; returns the exit status.

    Args:
        words: of the command line.
        play: what the run inside does.

    Returns:
        2 where this machine allows no namespaces, after saying why.
    """
    if os.environ.get(_INSIDE):
        return play()
    if reason := why_not():
        sys.stdout.write(f"nodes cannot have addresses of their own here: {reason}\nnot shown: anything\n")
        return 2
    command = isolated([sys.executable, "-m", module, *words])
    return subprocess.run(command, env={**os.environ, _INSIDE: "1"}, check=False).returncode


@dataclass(eq=False)
class Host:
    """A namespace with one address."""

    name: str
    ip: str
    _holder: "subprocess.Popen[bytes]"

    @property
    def prefix(self) -> tuple[str, ...]:
        """What runs a command on it. The process keeps its number."""
        return ("nsenter", f"--net=/proc/{self._holder.pid}/ns/net")

    def processes(self) -> list[int]:
        """The processes on it."""
        return [pid for pid in self._inhabitants() if pid != self._holder.pid]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all processes on it."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """`kill -9` of everything on it; its kernel goes on."""
        while self.processes():
            self.signal(signal.SIGKILL)
            time.sleep(0.02)

    def power_off(self) -> None:
        """The power goes: no connection is ended, and nothing answers. `heal` before the next start."""
        self.cut()  # else the kernel would end the connections of what is killed
        self.kill()

    def cut(self) -> None:
        """Nothing gets in or out."""
        _ip("link", "set", self.name, "down")

    def heal(self) -> None:
        """As before `cut`."""
        _ip("link", "set", self.name, "up")

    def run(self, *command: str) -> None:
        """Run a command on it. Raises CalledProcessError."""
        subprocess.run([*self.prefix, *command], check=True, capture_output=True)

    def close(self) -> None:
        """Give the namespace back."""
        self._holder.kill()
        self._holder.wait()

    def _inhabitants(self) -> Iterator[int]:
        with suppress(FileNotFoundError):
            home = Path(f"/proc/{self._holder.pid}/ns/net").stat().st_ino
            for entry in Path("/proc").iterdir():
                if entry.name.isdigit():
                    with suppress(OSError):
                        if (entry / "ns" / "net").stat().st_ino == home and _is_living(entry):
                            yield int(entry.name)


class Network:
    """The bridge and its hosts. Only inside `isolated`."""

    def __init__(self) -> None:
        """Make the bridge."""
        _ip("link", "set", "lo", "up")
        _ip("link", "add", _BRIDGE, "type", "bridge")
        _ip("addr", "add", f"{HUB}/24", "dev", _BRIDGE)
        _ip("link", "set", _BRIDGE, "up")
        self.hosts: list[Host] = []

    def add(self) -> Host:
        """One more host."""
        number = len(self.hosts) + 1
        holder = subprocess.Popen(["unshare", "--net", sys.executable, "-S", "-c", _HOLD])
        host = Host(f"host{number}", f"10.77.0.{number}", holder)
        own = Path("/proc/self/ns/net").stat().st_ino
        while Path(f"/proc/{holder.pid}/ns/net").stat().st_ino == own:
            time.sleep(0.01)
        _ip("link", "add", host.name, "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
        _ip("link", "set", host.name, "master", _BRIDGE, "up")
        host.run("ip", "link", "set", "lo", "up")
        host.run("ip", "addr", "add", f"{host.ip}/24", "dev", "eth0")
        host.run("ip", "link", "set", "eth0", "up")
        self.hosts.append(host)
        return host

    @contextmanager
    def bad_way(self, one: Host, other: Host, delay_s: float, loss: float) -> Iterator["BadWay"]:
        """Packets between two hosts come late by `delay_s`, and this share of them never."""
        way = BadWay(one, other, delay_s, loss)
        try:
            yield way
        finally:
            way.close()

    def close(self) -> None:
        """Give all namespaces back."""
        for host in self.hosts:
            host.kill()
            host.close()


@dataclass(order=True)
class _Packet:
    due_s: float
    descriptor: int = field(compare=False)
    data: bytes = field(compare=False)


class BadWay:
    """See `Network.bad_way`."""

    def __init__(self, one: Host, other: Host, delay_s: float, loss: float) -> None:
        self.carried = 0
        self.lost = 0
        self._delay_s = delay_s
        self._loss = loss
        self._ends = [(one, other, _open_tun(one)), (other, one, _open_tun(other))]
        self._ended, self._end = os.pipe()
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()
        for here, there, _ in self._ends:
            here.run("ip", "link", "set", "bad0", "up")
            here.run("ip", "route", "add", f"{there.ip}/32", "dev", "bad0", "src", here.ip)

    def close(self) -> None:
        """The good way again."""
        os.close(self._end)
        self._thread.join()
        os.close(self._ended)
        for _, _, descriptor in self._ends:
            os.close(descriptor)  # the device goes, and the route with it

    def _carry(self) -> None:
        chance = random.Random(0)
        towards = {self._ends[0][2]: self._ends[1][2], self._ends[1][2]: self._ends[0][2]}
        late: list[_Packet] = []
        while True:
            wait_s = max(0.0, late[0].due_s - time.monotonic()) if late else None
            ready, _, _ = select.select([self._ended, *towards], [], [], wait_s)
            if self._ended in ready:
                return
            for descriptor in ready:
                data = os.read(descriptor, _PACKET_BYTES)
                if chance.random() < self._loss:
                    self.lost += 1
                else:
                    heapq.heappush(late, _Packet(time.monotonic() + self._delay_s, towards[descriptor], data))
            while late and late[0].due_s <= time.monotonic():
                packet = heapq.heappop(late)
                with suppress(OSError):
                    os.write(packet.descriptor, packet.data)
                self.carried += 1


def _open_tun(host: Host) -> int:
    """The descriptor of a TUN device `bad0` of a host. It can be used from everywhere."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        code = f"from tests.cluster.network import hand_over_tun; hand_over_tun({theirs.fileno()})"
        subprocess.run([*host.prefix, sys.executable, "-c", code], pass_fds=[theirs.fileno()], check=True)
        _, controls, _, _ = ours.recvmsg(1, socket.CMSG_LEN(array.array("i").itemsize))
    (descriptor,) = array.array("i", controls[0][2][: array.array("i").itemsize])
    return descriptor


def hand_over_tun(door: int) -> None:
    """Make the device where this process is, and send its descriptor."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH14x", b"bad0", _TUN_WITHOUT_HEADER))
    with socket.socket(fileno=os.dup(door)) as to:
        to.sendmsg([b"t"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))])


def _is_living(entry: Path) -> bool:
    return entry.joinpath("stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
