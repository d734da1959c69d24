"""The product on three nodes with addresses of their own, with a database and a front door beside them."""

import asyncio
import signal
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from broker.storage.embedded.server import EmbeddedPostgres
from tests.adversity.soak import until
from tests.adversity.two_nodes import Node, node_environment, until_alive
from tests.cluster import front_door
from tests.cluster.network import HUB, Host, Network
from tests.deployments.instance import Instance

NODES = 3
_GCS_PORT = 6379
_DATABASE_PORT = 5432
_START_S = 90.0
_ADMITTED = "local all all trust\nhost all all 10.77.0.0/24 trust\n"
_SETTINGS = {
    "BROKER_BIND_HOST": "node",
    "BROKER_OPS_HOST": "node",
    "BROKER_OWNERS": "3",
}


@dataclass
class Stage:
    """What is there. The first of `hosts` is the head, and `broker up` runs on it."""

    directory: Path
    network: Network
    hosts: list[Host]
    environment: dict[str, str]
    instance: Instance
    nodes: dict[str, Node] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """Where Ray's GCS is."""
        return f"{self.hosts[0].ip}:{_GCS_PORT}"

    async def start_node(self, host: Host) -> None:
        """`ray start` on a host that has none, the head's with what its GCS kept."""
        if host is self.hosts[0]:
            # A host that was off has no such file, nor does it see the processes of others.
            (self.directory / "r" / "ray_current_cluster").unlink(missing_ok=True)
            arguments = ["--head", f"--port={_GCS_PORT}", "--include-dashboard=false"]
            arguments.append(f"--temp-dir={self.directory / 'r'}")
        else:
            arguments = [f"--address={self.address}"]
        self.nodes[host.ip] = Node(host.ip, self.environment, arguments, host.prefix)
        await until(lambda: self.nodes[host.ip].processes("raylet/raylet"), _START_S)

    async def start_product(self) -> None:
        """`broker up` on the head; its own end is that of nothing else."""
        await asyncio.to_thread(self.instance.start)

    async def until_joined(self, count: int = NODES) -> None:
        """Until so many nodes are alive in Ray's eyes."""
        await until_alive(count, self.environment, self.address, self.hosts[0].prefix)

    async def until_everywhere(self, title: str, hosts: Sequence[Host]) -> None:
        """Until a process with this title runs on each of the hosts."""
        await until(lambda: all(find_on(host, title) for host in hosts))


def find_on(host: Host, title: str) -> list[int]:
    """The processes of a host with `title` in their command lines."""
    found = []
    for pid in host.processes():
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if title.encode() in b" ".join(words):
                found.append(pid)
    return found


@asynccontextmanager
async def open_stage(directory: Path, **settings: str) -> AsyncIterator[Stage]:
    """Start everything; end it. Only in `network.isolated`."""
    async with AsyncExitStack() as stack:
        network = Network()
        stack.callback(network.close)
        dsn = await _open_database(stack, directory)
        environment = node_environment(directory) | {
            "RAY_gcs_storage": "rocksdb",
            "RAY_gcs_storage_path": str(directory / "gcs"),
        }
        hosts = [network.add() for _ in range(NODES)]
        ours = {"BROKER_RAY_ADDRESS": f"{hosts[0].ip}:{_GCS_PORT}", "BROKER_DATABASE_URL": dsn}
        environment |= ours | _SETTINGS | settings
        instance = Instance(
            directory / "data", database_url=dsn, environment=environment, prefix=hosts[0].prefix
        )
        stage = Stage(directory, network, hosts, environment, instance)
        for host in hosts:
            await stage.start_node(host)
        await stage.until_joined()
        stack.callback(instance.end)
        await stage.start_product()
        _open_front_door(stack, directory, stage)
        yield stage
        if instance.process.poll() is None:
            await asyncio.to_thread(instance.stop)


async def _open_database(stack: AsyncExitStack, directory: Path) -> str:
    """PostgreSQL, which belongs to no node; the way to it."""
    root = directory / "postgres"
    settings = {"listen_addresses": HUB, "port": str(_DATABASE_PORT), "max_connections": "200"}
    server = EmbeddedPostgres(root, settings=settings)
    await server.start()
    await server.stop()
    (root / "data" / "pg_hba.conf").write_text(_ADMITTED)
    await server.start()
    stack.push_async_callback(server.stop)
    return f"postgresql://broker@{HUB}:{_DATABASE_PORT}/postgres"


def _open_front_door(stack: AsyncExitStack, directory: Path, stage: Stage) -> None:
    path, instance = directory / "front-door.cfg", stage.instance
    nodes = [host.ip for host in stage.hosts]
    front_door.write_configuration(path, nodes, instance.http_port, instance.ws_port, instance.ops_port)
    process = front_door.start(path)
    stack.callback(_end, process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
