"""A cluster of two nodes, of which the second is cut off, comes back, and dies: `make adversity`.

The nodes have loopback addresses of their own and a PostgreSQL that is part of neither. They share the ports
of the product: the kernel spreads connections over the doors of both, as a front door would. Being cut off is
to be stopped as a whole for longer than the cluster waits.
"""

import asyncio
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import psutil

from broker.deployments.ports import free_port
from broker.settings import child_environment
from broker.storage.embedded.server import EmbeddedPostgres
from tests.adversity.faults import TITLES, hit
from tests.adversity.figures import table
from tests.adversity.producers import PASSING
from tests.adversity.soak import Show, Size, open_show, until
from tests.deployments.instance import Instance

_ROOT = Path(__file__).parents[2]
HEAD, SECOND = "127.0.0.11", "127.0.0.12"
_START_S = 60.0
_WHOLE_S = 120.0
_CUT_OFF_S = 25.0  # longer than the health checks of `node.env` take
_WAIT = """
import sys, time, ray
ray.init(sys.argv[1], log_to_driver=False)
while sum(node["Alive"] for node in ray.nodes()) < int(sys.argv[2]):
    time.sleep(0.1)
"""
_SIZE = Size(producers=10, viewers=20, programs=4, events_per_s=400.0)


class Node:
    """One node: `ray start` and everything below it."""

    def __init__(
        self, ip: str, environment: dict[str, str], arguments: list[str], prefix: Sequence[str] = ()
    ) -> None:
        """Start it. `prefix` of the command says where."""
        common = [
            f"--node-ip-address={ip}",
            "--num-cpus=2",
            "--object-store-memory=80000000",
            f"--dashboard-agent-listen-port={free_port()}",
            f"--metrics-export-port={free_port()}",
            "--disable-usage-stats",
            "--include-log-monitor=false",  # that of each node would read the logs of all on this machine
            "--block",
        ]
        self._process = subprocess.Popen(
            [*prefix, Path(sys.executable).with_name("ray"), "start", *common, *arguments],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def processes(self, title: str = "") -> list[psutil.Process]:
        """Its processes, those with `title` in their command lines."""
        found = []
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(self._process.pid)
            for process in (root, *root.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    if title in " ".join(process.cmdline()):
                        found.append(process)
        return found

    def kill(self) -> None:
        """`kill -9` of all of it, stopped or not. Idempotent."""
        while living := self.processes():
            hit(living, signal.SIGKILL)
            psutil.wait_procs(living, 1)
            if self._process.poll() is not None:
                return


def node_environment(directory: Path) -> dict[str, str]:
    """As the operator's guide has it: `deploy/node.env`, with the paths as they are here, and a token."""
    lines = (_ROOT / "deploy" / "node.env").read_text().splitlines()
    known = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    (directory / "i").mkdir(mode=0o700, parents=True)
    places = {"/run/broker": str(directory / "i"), "/opt/broker/.venv/bin": str(Path(sys.executable).parent)}
    for there, here in places.items():
        known = {name: value.replace(there, here) for name, value in known.items()}
    token = {"RAY_AUTH_TOKEN": secrets.token_hex(32)}
    return child_environment(known | token | {"PYTHONPATH": str(_ROOT / "python")})


@asynccontextmanager
async def open_cluster(
    directory: Path, **settings: str
) -> AsyncIterator[tuple[Instance, list[Node], dict[str, str]]]:
    """The product on two nodes; the list of nodes may be changed. Args: settings: of ours."""
    environment, address = node_environment(directory), f"{HEAD}:{free_port()}"
    server = EmbeddedPostgres(directory / "postgres")
    nodes: list[Node] = []
    async with AsyncExitStack() as stack:
        dsn = await server.start()
        stack.push_async_callback(server.stop)
        stack.callback(_kill_all, nodes)
        port = address.rpartition(":")[2]
        head = ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={directory / 'r'}"]
        nodes.append(Node(HEAD, environment, head))
        await until(lambda: nodes[0].processes("raylet"), _START_S)
        nodes.append(second_node(environment, address))
        await until_alive(2, environment, address)
        environment = environment | {"BROKER_RAY_ADDRESS": address, "BROKER_DATABASE_URL": dsn}
        environment |= settings
        instance = Instance(directory / "data", database_url=dsn, environment=environment)
        stack.callback(instance.end)
        await asyncio.to_thread(instance.start)
        yield instance, nodes, environment
        if instance.process.poll() is None:
            await asyncio.to_thread(instance.stop)


async def until_alive(
    count: int, environment: dict[str, str], address: str, prefix: Sequence[str] = ()
) -> None:
    """Until so many nodes have joined: slots are spread over those that are there when they start."""
    waiting = await asyncio.create_subprocess_exec(
        *prefix,
        sys.executable,
        "-c",
        _WAIT,
        address,
        str(count),
        env=environment,
        stdout=DEVNULL,
        stderr=DEVNULL,
    )
    try:
        async with asyncio.timeout(_START_S):
            code = await waiting.wait()
    except TimeoutError:
        waiting.kill()
        await waiting.wait()
        raise
    assert code == 0, "the cluster cannot be asked for its nodes"


def _kill_all(nodes: list[Node]) -> None:
    for node in nodes:
        node.kill()


def second_node(environment: dict[str, str], address: str) -> Node:
    """A node that joins."""
    return Node(SECOND, environment, [f"--address={address}"])


async def play(show: Show, nodes: list[Node], environment: dict[str, str]) -> None:
    """The second node is cut off, comes back, dies."""
    assert nodes[1].processes(TITLES["owner"]), "the second node has no owner"
    began_s = time.monotonic()
    frozen = nodes[1].processes()
    hit(frozen, signal.SIGSTOP)
    await show.until_at_work(began_s + _CUT_OFF_S)
    hit(frozen, signal.SIGCONT)
    await show.until_at_work(time.monotonic() + 2.0)
    show.note_fault("a node is cut off and comes back", began_s)

    nodes[1].kill()
    nodes[1] = second_node(environment, environment["BROKER_RAY_ADDRESS"])
    await until(lambda: nodes[1].processes(TITLES["gateway"]), _WHOLE_S)
    show.instance.process.send_signal(signal.SIGHUP)
    await until(lambda: nodes[1].processes(TITLES["owner"]), _WHOLE_S)
    await show.until_at_work(time.monotonic())

    began_s = time.monotonic()
    nodes[1].kill()
    await show.until_at_work(time.monotonic() + 2.0)
    show.note_fault("a node dies", began_s)


async def main() -> int:
    """Print what came out; 1 when anything was wrong."""
    with tempfile.TemporaryDirectory(prefix="bn-", ignore_cleanup_errors=True) as name:
        async with (
            open_cluster(Path(name)) as (instance, nodes, environment),
            open_show(instance, _SIZE, passing=PASSING) as show,
        ):
            try:
                await play(show, nodes, environment)
                verdict = await show.close()
            except BaseException:
                sys.stderr.write(instance.log())
                raise
    lines = [
        table(verdict.outages),
        *verdict.findings,
        f"{verdict.events:,} events, {len(verdict.findings)} findings",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    return bool(verdict.findings)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
